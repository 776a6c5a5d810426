"""Packages that cannot be installed beside vLLM, in a folder that only one process looks into.

    <cache>/<name>-<digest>/           whole: what a lock of requirements/ pins
    <cache>/<name>-<digest>.partial/   being made; the next process removes it
    <cache>/<name>-<digest>.lock       whose turn it is

llm-compressor needs another compressed-tensors than vLLM. pip checks every file against the lock's
hashes. A folder gets its name when it is on the disk.
"""

import errno
import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from common.child_process import Report
from common.errors import Problem
from common.file_lock import only_one
from deployments.models.model import cache_folder
from deployments.models.wheel_download import disk_full, run_pip

LOCK = Path(__file__).parents[2] / "requirements" / "quantize.lock"


def quantizer_packages(report: Report, lock: Path = LOCK) -> Path:
    """llm-compressor and what it needs, as `overlay_packages`."""
    return overlay_packages("quantizer", "llm-compressor", lock, report)


def overlay_packages(name: str, what: str, lock: Path, report: Report) -> Path:
    """The folder, made if it is not there; `report` hears of nothing when it is. `what` the lock
    is of, for people. Raises Problem.
    """
    pins = lock.read_bytes()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(pins + python.encode()).hexdigest()[:16]
    folder = cache_folder() / f"{name}-{digest}"
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(
            folder.with_name(folder.name + ".lock"),
            on_wait=lambda: report(0.0, "waiting for another process that installs them"),
        ) as lock_fd:
            if not folder.exists():
                _install(lock, folder, report, lock_fd, what=what)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(folder.parent) from error
        raise Problem(
            f"{folder.parent} cannot be written: {error.strerror or error}",
            "make it writable, or set ANTEFIX_CACHE to a folder that is",
        ) from error
    return folder


def _install(lock: Path, folder: Path, report: Report, lock_fd: int, *, what: str) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = len(re.findall(r"^[\w.\-]+==", lock.read_text(), re.MULTILINE))

    def report_packages() -> None:
        said = (partial / "pip.log").read_text()
        doing = "installing" if "\nInstalling " in said else "downloading"
        collected = said.count("Collecting ")
        report(0.9 * collected / wanted, f"{doing} {what} and its packages")

    run_pip(
        *("install", "--only-binary", ":all:", "--progress-bar", "off"),
        *("--target", str(partial / "packages"), "-r", str(lock)),
        folder=partial,
        lock_fd=lock_fd,
        poll=report_packages,
        what=f"{what} (requirements/{lock.name})",
    )
    # A folder that has its name after a power cut has its bytes too.
    os.sync()
    (partial / "packages").rename(folder)
    shutil.rmtree(partial)
