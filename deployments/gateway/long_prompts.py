"""Threads in which long prompts are read, beside a gateway's event loop.

One of them at a time computes in Python, and who parses their bodies takes turns with them: with
several, the event loop would wait for one after the other before it has the interpreter back. The
tokenizer, which does without, goes on beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# Of this process. More prompts at once are placed by load alone, as those that cannot be rendered.
AT_MOST = 64
THREADS = min(8, (os.cpu_count() or 1) + 2)

Read = TypeVar("Read")


class LongPrompts:
    """Threads in which nothing but prompts is read, so that nothing else can keep them busy."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "prompts")
        self._reading = 0
        self._turn = threading.Lock()
        # the thread that has the turn
        self._whose: int | None = None

    async def run(self, read: Callable[[], Read]) -> Read | None:
        """What `read` gives; None at once while AT_MOST are being read."""
        if self._reading >= AT_MOST:
            return None
        self._reading += 1
        work = [read]

        def take() -> Read:
            with self.a_turn():
                return work.pop()()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, take)
        finally:
            self._reading -= 1
            # of one whose client left, the threads' queue holds no body any more
            work.clear()

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """For what lets go of the interpreter: another of the threads has its turn meanwhile."""
        if self._whose != threading.get_ident():  # the event loop's, or any other
            yield
            return
        self._end_turn()
        try:
            yield
        finally:
            self._begin_turn()

    @contextlib.contextmanager
    def a_turn(self) -> Iterator[None]:
        """For a thread that computes in Python: none of the others does meanwhile."""
        self._begin_turn()
        try:
            yield
        finally:
            self._end_turn()

    def _begin_turn(self) -> None:
        self._turn.acquire()
        self._whose = threading.get_ident()

    def _end_turn(self) -> None:
        self._whose = None
        self._turn.release()


# Of this process, for all of its pools.
LONG_PROMPTS = LongPrompts()
