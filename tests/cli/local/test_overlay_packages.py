"""The quantizer's packages, from wheels in a folder: the real pip."""

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from cli.local.overlay_packages import quantizer_packages
from common.errors import Problem


def ignore(fraction: float, what: str) -> None:
    pass


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "index" / "toy-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        about = "toy-1.0.dist-info"
        archive.writestr("toy.py", "")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setenv("ANTEFIX_CACHE", str(tmp_path / "cache"))
    return path


def lock_of(wheel: Path, digest: str | None = None) -> Path:
    lock = wheel.parent.parent / "test.lock"
    found = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock.write_text(f"toy==1.0 --hash=sha256:{found}\n")
    return lock


def test_the_packages_are_installed_once(wheel: Path) -> None:
    lock = lock_of(wheel)
    folder = quantizer_packages(ignore, lock)
    assert (folder / "toy.py").exists()
    assert not folder.with_name(folder.name + ".partial").exists()
    wheel.unlink()
    assert quantizer_packages(ignore, lock) == folder


def test_a_package_that_is_not_the_pinned_one_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(Problem, match=r"differs from the one pinned for llm-compressor"):
        quantizer_packages(ignore, lock_of(wheel, "0" * 64))
    assert not [f for f in (tmp_path / "cache").iterdir() if f.name.endswith(tuple("0123456789"))]
