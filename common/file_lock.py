"""One process at a time, on this machine.

The kernel lets go when the last process that holds the descriptor ends, so a kill leaves nothing
behind, and a child that was given the descriptor keeps the turn while it still writes.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_one(lock_file: Path, on_wait: Callable[[], None]) -> Iterator[int]:
    """Yields the descriptor that holds the turn; `on_wait` is called once if another has it."""
    with lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()
