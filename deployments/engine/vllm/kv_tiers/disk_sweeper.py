"""Keep the folder of a disk tier below its size: python disk_sweeper.py FOLDER MOST_BYTES EXPIRE_S

vLLM never deletes the files of a tier. Each engine with a disk tier has a process of this program,
so that listing many files does not delay the engine. The least recently used files are removed
first: the tier sets the time of a file when it is used (`disk_tier.py`). Engines may share a
folder, and one of them sweeps at a time. Nothing is remembered between two sweeps, so a crash
leaves nothing behind. The process ends when its stdin is closed.

It imports only the standard library, because it starts with each engine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PERIOD_S = 10.0
# A sweep leaves this share of the size.
KEPT_SHARE = 0.95
# vLLM writes a file under another name first. One that is older than this was left by a crash.
UNFINISHED, UNFINISHED_S = ".tmp", 600.0
_LOCK = ".sweeping"
_NICE = 10


def sweep(folder: Path, most_bytes: int, expire_s: float, now: float) -> list[Path]:
    """Remove files that were not used for `expire_s` seconds, and then the least recently used ones
    while there are more than `most_bytes`. Return the removed ones.

    `now`: seconds since 1970. Nothing is done while another process sweeps the folder, or if it is
    gone. A file that cannot be removed is left, and files that others remove at the same time are
    no error.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, FileNotFoundError):
            return []
        files = sorted(_files(folder))
        kept = sum(size for _, size, _ in files)
        most = most_bytes if kept <= most_bytes else int(KEPT_SHARE * most_bytes)
        removed = []
        for used, size, path in files:
            lifetime_s = UNFINISHED_S if path.suffix == UNFINISHED else expire_s
            if kept <= most and now - used < lifetime_s:
                continue
            with contextlib.suppress(OSError):
                path.unlink()
                kept -= size
                removed.append(path)
        return removed


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield the time of the last use, the size and the path of each file."""
    pending = [str(folder)]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:  # removed meanwhile
            continue
        with entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.name != _LOCK:
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, Path(entry.path)


def main(folder: str, most_bytes: str, expire_s: str) -> None:
    """Sweep until stdin is closed."""
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends its engine, which closes stdin
    while True:
        try:
            sweep(Path(folder), int(most_bytes), float(expire_s), time.time())
        except OSError as error:
            print(f"failed to sweep the KV cache in {folder}: {error}", file=sys.stderr)
        if select.select([sys.stdin], [], [], PERIOD_S)[0]:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
