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
import subprocess
import sys
from pathlib import Path

from common.errors import SetupError
from common.file_lock import only_one
from deployments.models.model import Report, cache_folder
from deployments.models.wheel_download import NO_NETWORK, disk_full

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
        ) as held:
            if not folder.exists():
                _install(lock, folder, report, held)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(folder.parent) from error
        raise SetupError(
            f"{folder.parent} cannot be written: {error.strerror or error}",
            "make it writable, or set ANTEFIX_CACHE to a folder that is",
        ) from error
    return folder


def _install(lock: Path, folder: Path, report: Report, held: int) -> None:
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "tmp").mkdir(parents=True)
    command = [
        *(sys.executable, "-m", "pip", "install", "--no-deps", "--require-hashes"),
        *("--only-binary", ":all:", "--progress-bar", "off", "--no-input"),
        *("--disable-pip-version-check", "--target", str(partial / "packages"), "-r", str(lock)),
    ]
    wanted = len(re.findall(r"^[\w.\-]+==", lock.read_text(), re.MULTILINE))
    said: list[str] = []
    what = "downloading"
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(partial / "tmp")},
        text=True,
        pass_fds=(held,),
    ) as pip:
        assert pip.stdout is not None
        try:
            for line in pip.stdout:
                said.append(line.strip())
                collected = sum(each.startswith("Collecting ") for each in said)
                if line.startswith("Installing "):
                    what = "installing"
                report(0.9 * collected / wanted, f"{what} llm-compressor and its packages")
        except BaseException:
            pip.kill()
            raise
    if pip.returncode != 0:
        raise _explained(said, folder)
    # A folder that has its name after a power cut has its bytes too.
    os.sync()
    (partial / "packages").rename(folder)
    shutil.rmtree(partial)


def _explained(said: list[str], folder: Path) -> SetupError:
    text = "\n".join(said)
    if "No space left on device" in text:
        return disk_full(folder.parent)
    if "DO NOT MATCH THE HASHES" in text:
        return SetupError(
            "the package index served other files than requirements/quantize.lock pins",
            "point PIP_INDEX_URL at an index that has the published ones",
        )
    if found := NO_NETWORK.search(text):
        return SetupError(
            f"llm-compressor cannot be downloaded: {found.group()}",
            "connect this machine, or point PIP_INDEX_URL at a mirror",
        )
    errors = [line for line in said if line.startswith("ERROR:")] or said or ["pip gave no reason"]
    return SetupError(
        f"llm-compressor cannot be installed: {errors[-1]}",
        f"it needs what requirements/quantize.lock pins, for Python {sys.version.split()[0]}",
    )
