"""The metric files of a node's processes, which outlive them: no restart loses a series.

    <folder>/gateway/<number>/          a gateway process; its successor continues its counts
    <folder>/engine/<pool>/<replica>/   an engine replica; kept for KEEP_S after its end
        *.db     prometheus_client's memory-mapped values
        owner    locked by the process while it lives

Their pages are reserved before they are written: the kernel kills a process (SIGBUS) that writes to
a mapped page without a block on a full disk. Counts without room stay in memory, and are written
when there is room.

https://prometheus.github.io/client_python/multiprocess/
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from common.private_folder import made_private, user_folder

logger = logging.getLogger("ray.serve")

FOLDER = "ANTEFIX_METRICS_FOLDER"
# Long enough for any Prometheus to have read the last values of a removed replica.
KEEP_S = 3600.0
_OWNER = "owner"
_FIRST_BYTES = 1 << 16
# Bytes of an entry in addition to its key: its length, its padding and two doubles.
_ENTRY_BYTES = 28
# The locks are released when the process ends.
_held: list[int] = []


def node_folder(fleet: str) -> Path:
    """Return the fleet's folder on this node, from ANTEFIX_METRICS_FOLDER if it is set.

    Raises OSError if its parent is not private to this user.
    """
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    return made_private(user_folder()) / "metrics" / fleet


def write_as_gateway(folder: Path) -> None:
    """Store this process's metrics in `folder` from now on, as those of a gateway.

    Raises OSError if the folder cannot be written.
    """
    for number in count():
        process = folder / "gateway" / str(number)
        if _claim(process, fcntl.LOCK_EX | fcntl.LOCK_NB):
            # the predecessor's gauges no longer apply
            for gauges in process.glob("gauge_*.db"):
                gauges.unlink()
            _write_to(process)
            return


def write_as_replica(folder: Path, pool: str, replica: str) -> None:
    """Store this process's metrics as those of an engine replica, whose name is unique."""
    process = folder / "engine" / pool / replica
    _claim(process, fcntl.LOCK_EX)
    _write_to(process)


def gateway_files(folder: Path) -> Iterator[list[Path]]:
    """Yield the files of each present or past gateway process; without gauges of dead ones."""
    for process in (folder / "gateway").glob("*"):
        yield _files(process, _is_owned(process))


def replica_files(folder: Path) -> Iterator[tuple[str, str, list[Path]]]:
    """Yield pool, replica and files of each replica; files of replicas that ended long ago are
    removed."""
    for process in (folder / "engine").glob("*/*"):
        alive = _is_owned(process)
        files = _files(process, alive)
        if not alive and _age_s(process, files) > KEEP_S:
            shutil.rmtree(process, ignore_errors=True)
            continue
        yield process.parent.name, process.name, files


def _claim(process: Path, how: int) -> bool:
    process.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(process / _OWNER, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        os.close(descriptor)
        return False
    _held.append(descriptor)
    return True


def _write_to(process: Path) -> None:
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(process)
    # the next process uses the same name; child processes have separate values, named by their pid
    own = values.MultiProcessValue(lambda: "own")  # type: ignore[no-untyped-call]
    values.ValueClass = own
    values.MmapedDict = _Reserved  # type: ignore[attr-defined, assignment]


class _Reserved(MmapedDict):
    """A value whose file has a block for each of its pages.

    The total is also in memory, so an update that is not written now is part of the next one.
    """

    def __init__(self, filename: str) -> None:
        self._path = filename
        self._is_open = self._is_full = False

    def read_value(self, key: str) -> tuple[float, float]:
        if not self._has(key):
            return 0.0, 0.0
        value: tuple[float, float] = super().read_value(key)  # type: ignore[no-untyped-call]
        return value

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        if self._has(key):
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self._is_open:
            super().close()  # type: ignore[no-untyped-call]

    def _has(self, key: str) -> bool:
        """Return whether the key has a place in the file, or room for one."""
        if self._is_open and key in self._positions:
            return True
        try:
            if not self._is_open:
                _reserve(self._path, _FIRST_BYTES)
                super().__init__(self._path)  # type: ignore[no-untyped-call]
                self._is_open = True
            size_bytes = len(key.encode()) + _ENTRY_BYTES
            if key not in self._positions and self._used + size_bytes > self._capacity:
                _reserve(self._path, 2 * self._capacity)
        except OSError as error:
            if not self._is_full:
                logger.warning("failed to make room for new metrics in %s: %s", self._path, error)
            self._is_full = True
            return False
        self._is_full = False
        return True


def _reserve(path: str, least_bytes: int) -> None:
    """Reserve the file's blocks. Raises OSError if the disk is full."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        os.posix_fallocate(descriptor, 0, max(least_bytes, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)


def _is_owned(process: Path) -> bool:
    with suppress(OSError):
        descriptor = os.open(process / _OWNER, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _files(process: Path, alive: bool) -> list[Path]:
    files = process.glob("*.db")
    return sorted(file for file in files if alive or not file.name.startswith("gauge_"))


def _age_s(process: Path, files: list[Path]) -> float:
    written = 0.0
    for path in (process, *files):
        with suppress(OSError):
            written = max(written, path.stat().st_mtime)
    return time.time() - written
