"""Queued requests of a pool. Each waits until its turn comes or its client leaves."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from autoscaling.admission.waiting import Waiter
from common.loops import until_next
from deployments.gateway.intake.request import client_gone

# The maximum time between two checks while requests wait. Ended answers trigger checks too, and
# loads arrive ten times per second.
TURN_PERIOD_S = 0.05
# The period of checks while no request waits.
IDLE_PERIOD_S = 1.0
# Results instead of a turn: another tenant's request took the place; or it must be decided again.
Rejected = Literal["rejected"]
Anew = Literal["anew"]


class Turns:
    """The queued requests of one pool."""

    def __init__(self, scheduler: PoolScheduler) -> None:
        self._scheduler = scheduler
        self._waiting: dict[
            Waiter[SchedulingRequest], asyncio.Future[Attempt | Rejected | Anew]
        ] = {}
        self._may_come = asyncio.Event()
        scheduler.freed = self._freed

    def __len__(self) -> int:
        return len(self._waiting)

    async def of(
        self, waiter: Waiter[SchedulingRequest], receive: Receive
    ) -> Attempt | Rejected | Anew:
        """Wait for a request's turn. Raises ClientDisconnect if its client leaves."""
        turn: asyncio.Future[Attempt | Rejected | Anew] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = turn
        self._may_come.set()  # wake `give`, which now checks more often
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            either: set[asyncio.Future[Any]] = {turn, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise ClientDisconnect
            return turn.result()
        except BaseException:
            if turn.done() and isinstance(attempt := turn.result(), Attempt):
                self._scheduler.ended(attempt, None)  # the turn came as the client left
            raise
        finally:
            gone.cancel()
            self._scheduler.left(waiter)
            del self._waiting[waiter]
            self._may_come.set()  # a shorter queue changes the demand

    def reject(self, waiter: Waiter[SchedulingRequest]) -> None:
        """Reject a waiting request that lost its place."""
        self._waiting[waiter].set_result("rejected")

    def decide_anew(self) -> None:
        """Have all waiting requests decided again, in order: their turn may never come."""
        for waiter, turn in list(self._waiting.items()):
            if not turn.done():
                self._scheduler.left(waiter)
                turn.set_result("anew")

    async def give(self) -> None:
        """Wait for the next check, then start all requests whose turn has come."""
        loop = asyncio.get_running_loop()
        # aligned with other loops, so an idle process wakes once for all of them
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
