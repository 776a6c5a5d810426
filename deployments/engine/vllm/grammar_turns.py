"""Turns at long compiles: a tenant has one at a time, and waiting tenants take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(eq=False)
class _Waiting:
    tenant: str
    since: float
    turn: asyncio.Future[None]


class GrammarTurns:
    """`at_once` turns, over all tenants. All methods run in one event loop."""

    def __init__(self, at_once: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._clock = clock
        self._held: set[str] = set()
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

    async def begin(self, tenant: str) -> None:
        """Wait for a turn, and take it."""
        one = _Waiting(tenant, self._clock(), asyncio.get_running_loop().create_future())
        self._waiting.append(one)
        self._give()
        try:
            await one.turn
        except asyncio.CancelledError:
            if one.turn.done() and not one.turn.cancelled():
                self.end(tenant)
            raise
        finally:
            if one in self._waiting:
                self._waiting.remove(one)

    def end(self, tenant: str) -> None:
        self._held.discard(tenant)
        self._give()

    def _give(self) -> None:
        while len(self._held) < self._at_once:
            ready = [w for w in self._waiting if w.tenant not in self._held and not w.turn.done()]
            if not ready:
                break
            one = min(ready, key=lambda w: (self._last.get(w.tenant, 0), w.since))
            self._waiting.remove(one)
            self._held.add(one.tenant)
            self._count += 1
            self._last[one.tenant] = self._count
            one.turn.set_result(None)
        if not self._waiting and not self._held:
            self._last.clear()  # otherwise it would grow with each tenant
