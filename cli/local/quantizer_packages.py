"""llm-compressor and what it needs, in a folder that only the quantizing process looks into.

    <cache>/quantizer-<digest>/           whole: what requirements/quantize.lock pins
    <cache>/quantizer-<digest>.partial/   being made; removed by whoever comes next
    <cache>/quantizer-<digest>.lock       whose turn it is

It needs another compressed-tensors than the vLLM beside it, so it cannot be installed with it.
pip checks every file against the lock's hashes. A folder gets its name when it is on the disk.
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
    """The folder, made if it is not there; `report` hears of nothing when it is."""
    pins = lock.read_bytes()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(pins + python.encode()).hexdigest()[:16]
    folder = cache_folder() / f"quantizer-{digest}"
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(
            folder.with_name(folder.name + ".lock"),
            on_wait=lambda: report(0.0, "waiting for another process that installs them"),
        ) as lock_fd:
            if not folder.exists():
                _install(lock, folder, report, lock_fd)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(folder.parent) from error
        raise Problem(
            f"{folder.parent} cannot be written: {error.strerror or error}",
            "make it writable, or set ANTEFIX_CACHE to a folder that is",
        ) from error
    return folder


def _install(lock: Path, folder: Path, report: Report, lock_fd: int) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = len(re.findall(r"^[\w.\-]+==", lock.read_text(), re.MULTILINE))

    def report_packages() -> None:
        said = (partial / "pip.log").read_text()
        doing = "installing" if "\nInstalling " in said else "downloading"
        collected = said.count("Collecting ")
        report(0.9 * collected / wanted, f"{doing} llm-compressor and its packages")

    run_pip(
        *("install", "--only-binary", ":all:", "--progress-bar", "off"),
        *("--target", str(partial / "packages"), "-r", str(lock)),
        folder=partial,
        lock_fd=lock_fd,
        poll=report_packages,
        what="llm-compressor (requirements/quantize.lock)",
    )
    # A folder that has its name after a power cut has its bytes too.
    os.sync()
    (partial / "packages").rename(folder)
    shutil.rmtree(partial)
