"""The metric files of a node's processes, which outlive them: no restart loses a series.

    <folder>/gateway/<number>/          a gateway process; the next one goes on counting there
    <folder>/engine/<pool>/<replica>/   an engine replica; kept for KEEP_S after its end
        *.db     prometheus_client's memory-mapped values
        owner    locked by the process while it lives

Their pages are reserved before they are written to: the kernel ends a process (SIGBUS) that writes
to a mapped page for which a full disk has no block. What finds no room is counted in memory, and
written when there is some.

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
# Long enough for any Prometheus to have read the last of a replica that is gone.
KEEP_S = 3600.0
_OWNER = "owner"
_FIRST_BYTES = 1 << 16
# Of an entry, beside its key: its length, its padding and two doubles.
_ENTRY_BYTES = 28
# Lets go when the process ends.
_held: list[int] = []


def node_folder(fleet: str) -> Path:
    """The fleet's on this node, from ANTEFIX_METRICS_FOLDER where that is set.

    Raises OSError where the folder for it is not this user's alone.
    """
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    return made_private(user_folder()) / "metrics" / fleet


def write_as_gateway(folder: Path) -> None:
    """From now on, metrics of this process are kept in `folder`, as those of a gateway.

    Raises OSError where that cannot be written.
    """
    for number in count():
        process = folder / "gateway" / str(number)
        if _claim(process, fcntl.LOCK_EX | fcntl.LOCK_NB):
            # what was the case for its predecessor is not the case
            for gauges in process.glob("gauge_*.db"):
                gauges.unlink()
            _write_to(process)
            return


def write_as_replica(folder: Path, pool: str, replica: str) -> None:
    """The same for an engine replica, whose name no other process has."""
    process = folder / "engine" / pool / replica
    _claim(process, fcntl.LOCK_EX)
    _write_to(process)


def gateway_files(folder: Path) -> Iterator[list[Path]]:
    """The files of each gateway process that counts or counted here; of a dead one no gauges."""
    for process in (folder / "gateway").glob("*"):
        yield _files(process, _is_owned(process))


def replica_files(folder: Path) -> Iterator[tuple[str, str, list[Path]]]:
    """Pool, replica and files of each replica; those that are long gone are removed."""
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
    # the same name for the next process; children, which have their own, take their pid
    own = values.MultiProcessValue(lambda: "own")  # type: ignore[no-untyped-call]
    values.ValueClass = own
    values.MmapedDict = _Reserved  # type: ignore[attr-defined, assignment]


class _Reserved(MmapedDict):
    """One whose file has a block for each of its pages. Whoever counts holds the total as well:
    what is not written now is in what is written next."""

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
        """Whether the key has its place in the file, or room for it."""
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
                logger.warning("new metrics do not fit into %s: %s", self._path, error)
            self._is_full = True
            return False
        self._is_full = False
        return True


def _reserve(path: str, least_bytes: int) -> None:
    """Raises OSError where the disk is full."""
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
