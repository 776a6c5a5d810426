"""A virtual environment for each peer, since their dependencies are none of Antefix.

    <cache>/peers/<requirement>/           `whole` in it: uv has installed all of it
    <cache>/peers/<requirement>.lock       whose turn it is

Made by the uv that bootstrap.py pins, from where pip is configured to look. Raises
CalledProcessError where a package is unavailable.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import bootstrap
from common.file_lock import only_one
from deployments.models.model import cache_folder


def environment(requirement: str, beside_ours: bool = False) -> Path:
    """Its folder of programs, such as python; made if it is not there. `requirement` may name more
    than one package. `beside_ours`: it finds the packages of this Python, too, and gets nothing
    that the requirement asks for itself."""
    folder = cache_folder() / "peers" / re.sub(r"[^\w.-]+", "-", requirement)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with only_one(folder.with_name(folder.name + ".lock"), on_wait=lambda: None):
        if not (folder / "whole").exists():
            print(f"installing {requirement} into {folder}", flush=True)
            _make(folder, requirement, beside_ours)
    return folder / "bin"


def _make(folder: Path, requirement: str, beside_ours: bool) -> None:
    bootstrap.get_uv()
    options = bootstrap.follow_pip()
    uv = [bootstrap.UV, "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(folder)], check=True)
    python = ["--python", str(folder / "bin" / "python")]
    if beside_ours:
        options.append("--no-deps")
        (theirs,) = (folder / "lib").glob("python3.*/site-packages")
        (theirs / "ours.pth").write_text(sysconfig.get_path("purelib"))
    subprocess.run([*uv, "pip", "install", *options, *python, *requirement.split()], check=True)
    (folder / "whole").touch()
