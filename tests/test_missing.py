"""What is missing: skipped where CI is not set, failed where it is, reported in the last line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import missing, programs, progress

ROOT = Path(__file__).parent.parent
LACKING = """
import pytest
from tests.missing import missing, program

@pytest.mark.parametrize("number", range(2))
def test_that_needs_much(number):
    missing("the moon is not here (go there)")

def test_that_needs_little():
    program("gnomon")

def test_that_needs_nothing(): ...
"""
MOON = "2 tests because the moon is not here (go there)"
GNOMON = "1 test because gnomon is not installed (on Debian or Ubuntu, as root: apt-get install"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    (tmp_path / "test_lacking.py").write_text(LACKING)
    (tmp_path / "without_gnomon.py").write_text(
        'from tests import programs\nprograms.NEEDED["gnomon"] = ("sundial", ["no-such-gnomon"])\n'
    )
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "tests.conftest", "-p", "without_gnomon", "-p", "no:cacheprovider")
    unset = ("CI", progress.NOTED_IN, missing.NOTED_IN)
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "test_lacking.py", *arguments],
        cwd=folder,
        env={**inherited, "PYTHONPATH": f"{ROOT}:{folder}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["one process", "several"])
def test_a_test_with_a_missing_program_is_skipped_and_listed_in_the_last_line(
    session: Path, arguments: tuple[str, ...]
) -> None:
    done = run(session, *arguments)
    assert done.returncode == 0, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last == f"Skipped: {MOON}; {GNOMON} --no-install-recommends sundial)."


def test_a_test_with_a_missing_program_fails_in_ci(session: Path) -> None:
    done = run(session, CI="true")
    assert done.returncode == 1
    assert "3 failed, 1 passed" in done.stdout
    assert "Skipped:" not in done.stdout


@pytest.mark.parametrize(("folder", "returns"), [("", 0), ("/nowhere", 1)])
def test_missing_data_fail_ci_only_where_a_folder_was_named(
    tmp_path: Path, folder: str, returns: int
) -> None:
    (tmp_path / "test_lacking.py").write_text(
        "from pathlib import Path\n"
        "from benchmarks.harness.results import public_data\n"
        "from tests.missing import data\n"
        "public_data.BESIDE = Path('/nowhere')\n"
        "public_data._download = lambda *_: (_ for _ in ()).throw(OSError('no network'))\n"
        "def test_that_needs_data(): data(public_data.AZURE_TRACE)\n"
    )
    (tmp_path / "without_gnomon.py").write_text("")
    told = {"CI": "true", "ANTEFIX_TEST_DATA": folder, "ANTEFIX_CACHE": str(tmp_path / "cache")}
    done = run(tmp_path, **told)
    assert done.returncode == returns, done.stdout
    assert "no network" in done.stdout


def test_several_sessions_end_with_one_line(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = session / "noted.jsonl"
    for _ in range(2):
        done = run(session, "-k", "much", **{missing.NOTED_IN: str(noted)})
        assert "Skipped:" not in done.stdout.splitlines()[-1]
    missing.main(noted)
    assert capsys.readouterr().out == f"Skipped: {MOON.replace('2', '4')}.\n"


def test_where_nothing_was_skipped_there_is_no_line(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = session / "noted.jsonl"
    run(session, "-k", "nothing", **{missing.NOTED_IN: str(noted)})
    missing.main(noted)
    assert capsys.readouterr().out == ""


def test_without_root_nothing_is_installed_and_ci_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(programs, "NEEDED", {"gnomon": ("sundial", ["no-such-gnomon"])})
    monkeypatch.setattr(programs, "install", lambda missing: pytest.fail("installed without root"))
    monkeypatch.delenv("CI", raising=False)
    assert programs.main() == 0
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("CI", "true")
    assert programs.main() == 1
    assert "these packages are missing: sundial; install them" in capsys.readouterr().err
