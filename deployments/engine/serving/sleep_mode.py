"""Put the engine of a warm replica to sleep, and wake it before it has to work.

A replica without traffic and requests for SLEEP_AFTER_S falls asleep. One that takes traffic again,
or receives a request nevertheless, wakes. A request waits for that and never fails because of it:
one that arrives while the engine falls asleep is served after it has woken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from common.loops import forever

logger = logging.getLogger("ray.serve")

SLEEP_AFTER_S = 30.0
POLL_S = 1.0


class SleepingEngine(Protocol):
    """Both may be called again after they failed."""

    async def sleep(self) -> None: ...
    async def wake_up(self) -> None: ...


class Sleeper:
    """Decides when one engine sleeps, while `run` runs; the engine is awake at first.

    `takes_traffic` returns whether gateways may choose the replica; None: unknown, so unchanged.
    `asleep` from before the engine falls asleep until it is awake again; `waiting` requests wait
    for that. `failing`: the last attempt to wake it failed, and is being repeated.
    """

    def __init__(
        self,
        engine: SleepingEngine,
        takes_traffic: Callable[[], bool | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._takes_traffic = takes_traffic
        self._clock = clock
        self._awake = asyncio.Event()
        self._awake.set()
        self._called = asyncio.Event()
        self._serving = 0
        self._idle_since: float | None = None
        self.waiting = 0
        self.failing = False

    @property
    def asleep(self) -> bool:
        return not self._awake.is_set()

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Wait until the engine is awake; it stays awake inside."""
        self._serving += 1
        try:
            if self.asleep:
                self._called.set()
                self.waiting += 1
                try:
                    await self._awake.wait()
                finally:
                    self.waiting -= 1
            yield
        finally:
            self._serving -= 1

    async def run(self, poll_s: float = POLL_S) -> None:
        """Put the engine to sleep and wake it until cancelled."""

        async def look() -> None:
            self._called.clear()
            await self.step()
            if self.failing:
                await asyncio.sleep(poll_s)
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(poll_s):
                    await self._called.wait()

        fails = "failed to decide whether the engine may sleep"
        await forever("sleep_mode", look, fails=fails, logger=logger)

    async def step(self) -> None:
        """Do what is due now."""
        if self.asleep:
            if self._serving or self._takes_traffic():
                await self._wake()
        elif self._is_due():
            await self._sleep()

    def _is_due(self) -> bool:
        if self._serving or self._takes_traffic() is not False:
            self._idle_since = None
            return False
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        return now - self._idle_since >= SLEEP_AFTER_S

    async def _sleep(self) -> None:
        self._idle_since = None
        self._awake.clear()
        try:
            await self._engine.sleep()
            logger.info("the engine entered sleep mode")
        except Exception:
            logger.warning("the engine failed to enter sleep mode", exc_info=True)
            await self._wake()

    async def _wake(self) -> None:
        try:
            began = self._clock()
            await self._engine.wake_up()
            logger.info("the engine woke up in %.1f s", self._clock() - began)
            self.failing = False
            self._awake.set()
        except Exception:
            if not self.failing:
                logger.exception("the engine failed to wake up; retrying")
            self.failing = True


class Awake:
    """ASGI: a request that needs computation waits until the engine is awake."""

    def __init__(self, app: ASGIApp, sleeper: Sleeper) -> None:
        self._app = app
        self._sleeper = sleeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the server answers requests that only read the engine's state
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        async with self._sleeper.awake():
            await self._app(scope, receive, send)
