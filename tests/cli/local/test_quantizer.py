"""What surrounds a quantization, with a script in the place of the process that quantizes."""

import dataclasses
from pathlib import Path

import pytest

from cli.local.quantizer import quantize
from common.errors import Problem
from weights.quantize.quantize_job import QuantizeJob

WRITES = """
(folder / "model").mkdir()
(folder / "model" / "weights").write_text("new")
print("0.5 half", flush=True)
"""
KEEPS_A_LAYER = """
(folder / "layers").mkdir()
(folder / "layers" / "0000.safetensors").write_text("done")
"""


class Quantizer:
    def __init__(self, folder: Path) -> None:
        self.job = QuantizeJob("org/model", None, "rtn", None, 1, None, 1, 64)
        self.out = folder / "out"
        self.partial = folder / "out.partial"
        self.said: list[str] = []
        self.reports: list[tuple[float, str]] = []
        self._packages = folder / "packages"

    def does(self, script: str) -> None:
        package = self._packages / "weights" / "quantize"
        package.mkdir(parents=True, exist_ok=True)
        for folder in (package.parent, package):
            (folder / "__init__.py").touch()
        head = "import sys, os, pathlib\nfolder = pathlib.Path(sys.argv[1])\n"
        (package / "quantizing.py").write_text(head + script)

    def run(self, replace: bool = False) -> None:
        quantize(
            self.job,
            self.out,
            self._packages,
            lambda fraction, what: self.reports.append((fraction, what)),
            self.said.append,
            replace,
        )


@pytest.fixture
def quantizer(tmp_path: Path) -> Quantizer:
    quantizer = Quantizer(tmp_path)
    quantizer.does(WRITES)
    return quantizer


def test_the_result_gets_its_name_and_no_partial_folder_remains(quantizer: Quantizer) -> None:
    quantizer.run()
    assert (quantizer.out / "weights").read_text() == "new"
    assert quantizer.reports == [(0.5, "half")]
    assert not quantizer.partial.exists()


def test_an_existing_folder_is_not_changed(quantizer: Quantizer) -> None:
    quantizer.out.mkdir()
    with pytest.raises(Problem, match=r"already exists.*--force"):
        quantizer.run()
    assert list(quantizer.out.iterdir()) == []


def test_replaced_weights_stay_until_the_new_ones_are_complete(quantizer: Quantizer) -> None:
    quantizer.out.mkdir()
    (quantizer.out / "weights").write_text("old")
    quantizer.does("sys.exit('no')")
    with pytest.raises(Problem, match="quantizing failed: no; see"):
        quantizer.run(replace=True)
    assert (quantizer.out / "weights").read_text() == "old"
    quantizer.does(WRITES)
    quantizer.run(replace=True)
    assert (quantizer.out / "weights").read_text() == "new"


def test_the_old_quantization_is_restored_after_a_kill_between_the_two_renames(
    quantizer: Quantizer,
) -> None:
    (quantizer.partial / "replaced").mkdir(parents=True)
    (quantizer.partial / "replaced" / "weights").write_text("old")
    with pytest.raises(Problem, match="already exists"):
        quantizer.run()
    assert (quantizer.out / "weights").read_text() == "old"


def test_the_same_job_reuses_its_finished_layers(quantizer: Quantizer) -> None:
    quantizer.does(KEEPS_A_LAYER + "os.kill(os.getpid(), 9)")
    with pytest.raises(Problem, match="was killed, perhaps because memory ran out"):
        quantizer.run()
    quantizer.does("assert (folder / 'layers' / '0000.safetensors').exists()" + WRITES)
    quantizer.run()
    assert quantizer.said == ["resuming an earlier run: 1 layers are done"]


def test_a_changed_job_starts_over_and_reports_it(quantizer: Quantizer) -> None:
    quantizer.does(KEEPS_A_LAYER + "sys.exit(1)")
    with pytest.raises(Problem):
        quantizer.run()
    quantizer.job = dataclasses.replace(quantizer.job, scheme="w8a8")
    quantizer.does("assert not (folder / 'layers').exists()" + WRITES)
    quantizer.run()
    assert "differ from those of the interrupted run" in quantizer.said[0]


def test_an_error_of_the_quantization_process_is_shown_to_the_user(quantizer: Quantizer) -> None:
    quantizer.does("""print('error {"message": "bad", "remedy": "do"}', flush=True); sys.exit(1)""")
    with pytest.raises(Problem) as error:
        quantizer.run()
    assert (error.value.message, error.value.remedy) == ("bad", "do")


def test_a_full_disk_is_reported(quantizer: Quantizer) -> None:
    quantizer.does("sys.exit('OSError: [Errno 28] No space left on device')")
    with pytest.raises(Problem, match="the disk is full"):
        quantizer.run()
