"""Surroundings in which a fleet's disk can be filled and its clock can be set."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from common.errors import Problem

DISK_BYTES = 512 * 1024 * 1024
# Where Linux distributions and the Python package have libfaketime's library.
_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
_OFFSET = "FAKETIME_TIMESTAMP_FILE"
_RULES = {
    "FAKETIME_CACHE_DURATION": "1",  # seconds after which it looks at the file again
    # set the wall clock only, not durations
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    "DONT_FAKE_MONOTONIC": "1",
    "NO_FAKE_STAT": "1",
}
_AHEAD_S = 3600
_LEFT_BY_IT = ("faketime_shm_*", "sem.faketime_sem_*")


@contextmanager
def small_disk() -> Iterator[None]:
    """The temporary directory has `DISK_BYTES`, where this machine allows the mount."""
    # short: the path of a Unix socket ends at 107 characters, and Ray's are in it
    folder = Path("/tmp") / f"afx{os.getpid()}"
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    folder.mkdir(mode=0o700)
    try:
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            yield
            return
        try:
            new = patch.dict(os.environ, TMPDIR=str(folder))
            with new, patch.object(tempfile, "tempdir", None):
                yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        folder.rmdir()


def fill(folder: Path) -> Path:
    """Fill the disk of `small_disk`. The file to remove. Raises Problem for another disk."""
    if shutil.disk_usage(folder).total > DISK_BYTES:
        raise Problem(
            f"{folder} is on a disk that others have too: one of the fleet's own takes root",
            "run it as root",
        )
    filler = folder / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for piece in (bytes(1 << 20), bytes(4096), b"0"):
            with suppress(OSError):
                while os.write(descriptor, piece):
                    pass
    finally:
        os.close(descriptor)
    return filler


@contextmanager
def settable_clock() -> Iterator[None]:
    """`set_clock` sets the clock of processes started here. Raises Problem without libfaketime."""
    before = _left_in_memory()
    with tempfile.TemporaryDirectory(prefix="afx-clock-") as folder:
        offset = Path(folder) / "offset"
        offset.write_text("+0")
        try:
            with patch.dict(
                os.environ,
                LD_PRELOAD=" ".join(filter(None, [library(), os.environ.get("LD_PRELOAD")])),
                **{_OFFSET: str(offset)},
                **_RULES,
            ):
                yield
        finally:
            for left in _left_in_memory() - before:
                left.unlink(missing_ok=True)


def set_clock(seconds: int) -> None:
    """Forward by `seconds`, or back where negative. It takes up to a second."""
    if not (file := os.environ.get(_OFFSET)):
        raise Problem("the fleet's clock cannot be set", "start it in `settable_clock`")
    offset = Path(file)
    new = offset.with_suffix(".new")
    new.write_text(f"{int(offset.read_text()) + seconds:+d}")
    new.replace(offset)


def library() -> str:
    """Raises Problem."""
    package = importlib.util.find_spec("libfaketime")
    found = [
        path
        for folder in (package.submodule_search_locations or [] if package else [])
        for path in Path(folder).glob("vendor/libfaketime/src/libfaketime.so.1")
    ]
    found += [path for pattern in _LIBRARIES for path in sorted(Path("/").glob(pattern[1:]))]
    for path in found:
        if _sets_clocks(path):
            return str(path)
    remedy = "install it: pip install libfaketime"
    if found:
        raise Problem(f"{found[0]} sets no clock, or lets no Python sleep (0.9.10 does so)", remedy)
    raise Problem("there is no libfaketime, which sets the clock of the fleet's processes", remedy)


def _sets_clocks(path: Path) -> bool:
    begins = time.time()
    asked = subprocess.run(
        [sys.executable, "-c", "import time; time.sleep(0.001); print(time.time())"],
        env={**os.environ, **_RULES, "LD_PRELOAD": str(path), "FAKETIME": f"+{_AHEAD_S}"},
        capture_output=True,
        check=False,
    )
    return asked.returncode == 0 and float(asked.stdout) >= begins + _AHEAD_S


def _left_in_memory() -> set[Path]:
    return {file for pattern in _LEFT_BY_IT for file in Path("/dev/shm").glob(pattern)}
