"""A lock that one process of this machine holds at a time.

The kernel releases it when the last process with the descriptor ends, so a kill leaves nothing
behind. A child that inherits the descriptor keeps the lock while it still writes.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_one(lock_file: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Yield the descriptor that holds the lock. `on_wait` is called once if another process has
    it."""
    with lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()
