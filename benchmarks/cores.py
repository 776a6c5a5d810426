"""Tasks on all cores, in processes that never outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def all_cores() -> Iterator[Executor]:
    """An executor with one process a core. If the block raises, Ctrl-C included, running tasks are
    killed and the others are dropped. SIGTERM does the same under `stopped_in_the_end`."""
    others = active_children()
    with ProcessPoolExecutor(initializer=_die_with_parent) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in active_children():
                if process not in others:
                    process.kill()
            raise


def _die_with_parent() -> None:
    """The terminal sends Ctrl-C to workers too: they leave it to their parent, which kills them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
