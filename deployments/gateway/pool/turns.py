"""Requests that wait in a gateway for their turn, each until it comes or its client leaves."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from autoscaling.pool_scheduler import PoolScheduler
from autoscaling.scheduling import Attempt, SchedulingRequest
from autoscaling.waiting import Waiter
from common.loops import until_next
from deployments.gateway.intake.request import client_gone

# How often those who wait are looked after at least: an answer may be their turn. Loads come ten
# times a second.
TURN_PERIOD_S = 0.05
# How often all is brought up to date while nobody waits.
IDLE_PERIOD_S = 1.0
# In place of a turn: its place was taken for another tenant's; it is to be decided again.
Refused = Literal["refused"]
Anew = Literal["anew"]


class Turns:
    """Of one pool."""

    def __init__(self, scheduler: PoolScheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[
            Waiter[SchedulingRequest], asyncio.Future[Attempt | Refused | Anew]
        ] = {}
        self._may_come = asyncio.Event()
        scheduler.freed = self._freed

    def __len__(self) -> int:
        return len(self._waiting)

    async def of(
        self, waiter: Waiter[SchedulingRequest], receive: Receive
    ) -> Attempt | Refused | Anew:
        """Wait for a request's turn. Raises ClientDisconnect when its client does not."""
        turn: asyncio.Future[Attempt | Refused | Anew] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = turn
        self._may_come.set()  # from now on it is looked more often
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            either: set[asyncio.Future[Any]] = {turn, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise ClientDisconnect
            return turn.result()
        except BaseException:
            if turn.done() and isinstance(attempt := turn.result(), Attempt):
                self._scheduler.ended(attempt, None)  # it came while the client left
            raise
        finally:
            gone.cancel()
            self._scheduler.left(waiter)
            del self._waiting[waiter]
            self._may_come.set()  # fewer wait, which is demand as well

    def refuse(self, waiter: Waiter[SchedulingRequest]) -> None:
        """It lost its place."""
        self._waiting[waiter].set_result("refused")

    def decide_anew(self) -> None:
        """All who wait, in their order: what they wait for may not come."""
        for waiter, turn in list(self._waiting.items()):
            if not turn.done():
                self._scheduler.left(waiter)
                turn.set_result("anew")

    async def give(self) -> None:
        """Let go whose turn has come, once there may be one, or some time has passed."""
        loop = asyncio.get_running_loop()
        # aligned with other loops: an idle process is woken once for all of them
        idle_s = until_next(IDLE_PERIOD_S, loop.time())
        after_s = TURN_PERIOD_S if self._waiting else idle_s
        timer = loop.call_later(after_s, self._may_come.set)
        try:
            await self._may_come.wait()
        finally:
            timer.cancel()
        self._may_come.clear()
        while (turn := self._scheduler.next_turn()) is not None:
            waiter, attempt = turn
            self._waiting[waiter].set_result(attempt)

    def _freed(self) -> None:
        if self._waiting:
            self._may_come.set()
