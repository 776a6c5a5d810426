"""Turns at long compiles, and at masks that take long: waiting tenants take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(eq=False)
class _Waiting:
    tenant: str
    since: float
    turn: asyncio.Future[None]
    cost: float


class GrammarTurns:
    """Turns that cost `at_once` together, over all tenants, and `of_tenant` for each one. A tenant
    without a turn gets any, and so does the first of all. All methods run in one event loop."""

    def __init__(
        self,
        at_once: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        of_tenant: float = 1.0,
    ) -> None:
        self._at_once, self._of_tenant = at_once, of_tenant
        self._clock = clock
        self._held: dict[str, list[float]] = {}
        self._waiting: list[_Waiting] = []
        # the tenant with the latest turn is last
        self._last: dict[str, int] = {}
        self._count = 0

    @property
    def longest_wait_s(self) -> float:
        """Return the longest current wait for other tenants' turns."""
        now = self._clock()
        waits = (now - one.since for one in self._waiting if one.tenant not in self._held)
        return max(waits, default=0.0)

    async def begin(self, tenant: str, cost: float = 1.0) -> None:
        """Wait for a turn, and take it."""
        turn = asyncio.get_running_loop().create_future()
        one = _Waiting(tenant, self._clock(), turn, cost)
        self._waiting.append(one)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end(tenant, cost)
            raise
        finally:
            if one in self._waiting:
                self._waiting.remove(one)
                self._give()  # it may have been the first of the others

    def end(self, tenant: str, cost: float = 1.0) -> None:
        held = self._held[tenant]
        held.remove(cost)
        if not held:
            del self._held[tenant]
        self._give()

    def _give(self) -> None:
        while ready := [one for one in self._first_of_each() if self._may_hold(one)]:
            one = min(ready, key=lambda w: (self._last.get(w.tenant, 0), w.since))
            held = sum(sum(costs) for costs in self._held.values())
            if self._held and held + one.cost > self._at_once:
                break  # a cheaper one does not overtake it
            self._waiting.remove(one)
            self._held.setdefault(one.tenant, []).append(one.cost)
            self._count += 1
            self._last[one.tenant] = self._count
            one.turn.set_result(None)
        if not self._waiting and not self._held:
            self._last.clear()  # otherwise it would grow with each tenant

    def _first_of_each(self) -> Iterable[_Waiting]:
        """Return the first request of each tenant that waits."""
        first: dict[str, _Waiting] = {}
        for one in self._waiting:
            if not one.turn.done():
                first.setdefault(one.tenant, one)
        return first.values()

    def _may_hold(self, one: _Waiting) -> bool:
        held = self._held.get(one.tenant)
        return held is None or sum(held) + one.cost <= self._of_tenant
