"""Packages from npm that tests use, installed from the lock file of a folder of tests."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

LOCKED = ("package.json", "package-lock.json")
INSTALL_TIMEOUT_S = 120


def installed(project: Path, *more: str) -> Path:
    """Return a folder with the packages and `more` files, kept for later sessions.

    Skips the test without node or the packages.
    """
    if shutil.which("node") is None or (npm := shutil.which("npm")) is None:
        pytest.skip("node and npm are not installed (https://nodejs.org)")
    files = (*LOCKED, *more)
    digest = hashlib.sha256(b"".join((project / name).read_bytes() for name in files)).hexdigest()
    folder = Path.home() / ".cache" / f"antefix-npm-{digest[:16]}"
    if not (folder / "node_modules" / ".package-lock.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in files:
            shutil.copy(project / name, folder)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S
            )
        except (subprocess.SubprocessError, OSError):
            pytest.skip(f"npm cannot install the packages of {project.name}: is it offline?")
    return folder
