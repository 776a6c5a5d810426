"""Whether a pool is without a replica, and how far those are that start.

A board is empty also where replicas cannot tell Redis of themselves, where Redis has forgotten
them, and for a moment where one is replaced. So Ray Serve has to say as well that it runs none,
and where it does not say anything nobody is thought to be gone.
"""

from __future__ import annotations

import asyncio
import time

from autoscaling.outage import Outage
from deployments.gateway.pool.serve_controller import AllReplicas, Question, Starting
from router.load import LoadBoard


class StartWatch:
    """Of one pool. `startup_s`: how long a start took lately, from its process to readiness; None:
    none was seen, and the fleet file says nothing (`expected_s`)."""

    def __init__(
        self, pool: str, board: LoadBoard, replicas: Question[AllReplicas], expected_s: float | None
    ) -> None:
        self.expected_s = expected_s
        self._pool = pool
        self._board = board
        self._replicas = replicas
        self._measured_s: float | None = None
        # replica id -> when it got its place on a node, in loop time; None: it waits for one
        self._began: dict[str, float | None] = {}

    @property
    def startup_s(self) -> float | None:
        return self._measured_s or self.expected_s

    async def look(self) -> Outage | None:
        """The outage that the scheduler decides by; None: replicas are there, or may be."""
        loads = (*self._board.loads().values(), *self._board.warm().values())
        self._measured_s = max((load.startup_s for load in loads), default=0.0) or self._measured_s
        if not self._board.empty_for_s:
            self._began = {}
            return None
        pool = (await self._replicas.latest()).get(self._pool)
        if pool is None or pool.able:
            return None
        now = asyncio.get_running_loop().time()
        self._began = {
            name: self._began_at(name, starting, now) for name, starting in pool.starting.items()
        }
        began = tuple(at for at in self._began.values() if at is not None)
        since = now - self._board.empty_for_s
        return Outage(since, self._replicas.as_of, self.startup_s, began)

    def _began_at(self, name: str, starting: Starting, now: float) -> float | None:
        if not starting.placed:
            return None
        if name in self._began:
            known = self._began[name]
            return now if known is None else known
        # of one that was there before it was looked at; the clock may be another machine's
        return now - max(0.0, time.time() - starting.asked_at)
