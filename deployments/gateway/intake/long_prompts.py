"""Threads that read long prompts, alongside a gateway's event loop.

Tenants take turns at the threads, as they do at parsing large bodies. Only one thread at a time
computes in Python, including the one that parses bodies. Otherwise the event loop would wait for
each of them before it gets the GIL back. The tokenizer releases the GIL and runs in parallel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from deployments.gateway.intake.tenant_turns import TenantTurns

# Prompts of one tenant. Further ones are placed by load only, like those that cannot be rendered.
MOST_WAITING = 64
THREADS = min(8, (os.cpu_count() or 1) + 2)

Read = TypeVar("Read")


class LongPrompts:
    """Threads that only read prompts, so no other work can keep them busy."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "prompts")
        self._turns = TenantTurns(threads)
        self._turn = threading.Lock()
        # the thread that has the turn
        self._whose: int | None = None

    async def run(self, tenant: str, read: Callable[[], Read]) -> Read | None:
        """Return the result of `read`; None at once if MOST_WAITING of the tenant's prompts wait.

        Once `read` has begun it keeps its thread until it ends, even if this call is cancelled.
        """
        if self._turns.waiting_of(tenant) >= MOST_WAITING:
            return None
        has_begun = False

        def take() -> Read:
            with self.a_turn():
                return read()

        async def wait_and_take() -> Read:
            nonlocal has_begun
            async with self._turns.of(tenant):
                has_begun = True
                return await asyncio.get_running_loop().run_in_executor(self._threads, take)

        taking = asyncio.create_task(wait_and_take())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            if not has_begun:
                taking.cancel()
            raise

    @contextlib.contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Give up the turn for a block that releases the GIL, so another thread can compute."""
        if self._whose != threading.get_ident():  # the event loop, or another thread
            yield
            return
        self._end_turn()
        try:
            yield
        finally:
            self._begin_turn()

    @contextlib.contextmanager
    def a_turn(self) -> Iterator[None]:
        """Hold the turn for a block that computes in Python. Waits while another thread has it."""
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


# The process has one, for all of its pools.
LONG_PROMPTS = LongPrompts()
