"""Tasks on all cores, in processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import active_children

import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def all_cores() -> Iterator[Executor]:
    """An executor with one process per core. If the block raises, Ctrl-C included, running tasks
    are killed with their children, and the others are dropped. SIGTERM does the same under
    `stopped_in_the_end`."""
    others = active_children()
    with ProcessPoolExecutor(initializer=_die_with_parent) as executor:
        try:
            yield executor
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            _kill([child.pid for child in active_children() if child not in others])
            raise


def _kill(pids: Iterable[int | None]) -> None:
    """With their children. All are found first: once one ends, the executor ends the rest."""
    found: list[psutil.Process] = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            found += [process, *process.children(recursive=True)]
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _die_with_parent() -> None:
    """Workers ignore Ctrl-C, which the terminal sends to them too: their parent kills them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
