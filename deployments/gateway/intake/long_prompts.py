"""Threads in which long prompts are read, alongside a gateway's event loop.

Tenants take turns at the threads, as they do at parsing large bodies. One thread at a time computes
in Python, and so does the one that parses bodies: otherwise the event loop would wait for each of
them before it has the interpreter back. The tokenizer needs no interpreter and runs in parallel.
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

# Of one tenant. Further prompts are placed by load alone, as are those that cannot be rendered.
MOST_WAITING = 64
THREADS = min(8, (os.cpu_count() or 1) + 2)

Read = TypeVar("Read")


class LongPrompts:
    """Threads in which nothing but prompts is read, so that nothing else can keep them busy."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "prompts")
        self._turns = TenantTurns(threads)
        self._turn = threading.Lock()
        # the thread that has the turn
        self._whose: int | None = None

    async def run(self, tenant: str, read: Callable[[], Read]) -> Read | None:
        """What `read` gives; None at once while MOST_WAITING of the tenant wait for a thread.

        Once `read` has begun it keeps its thread to its end, also when this is cancelled.
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
