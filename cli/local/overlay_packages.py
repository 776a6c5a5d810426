"""Packages that conflict with vLLM, in a separate folder for one process.

    <cache>/<name>-<digest>/           complete: the packages that a lock of requirements/ pins
    <cache>/<name>-<digest>.partial/   incomplete; the next process removes it
    <cache>/<name>-<digest>.lock       held while installing

llm-compressor needs another compressed-tensors than vLLM. pip checks every file against the lock's
hashes. A folder gets its final name once it is complete.
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
    """Return llm-compressor and its requirements, as `overlay_packages`."""
    return overlay_packages("quantizer", "llm-compressor", lock, report)


def overlay_packages(name: str, what: str, lock: Path, report: Report) -> Path:
    """Return the folder, created if missing. `report` gets the progress of creating it.

    `what` describes the packages of the lock to users. Raises Problem.
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
    # After a power cut, a folder with its final name has all its bytes.
    os.sync()
    (partial / "packages").rename(folder)
    shutil.rmtree(partial)
