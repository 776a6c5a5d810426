"""Detects that a pool has no replica, and when its starting replicas got their places.

A load board is also empty if replicas cannot reach Redis, if Redis has lost its data, and briefly
while a replica is replaced. So Ray Serve must also report that no replica runs. If Ray Serve does
not answer, there is no outage.
"""

from __future__ import annotations

import asyncio
import time

from autoscaling.admission.outage import Outage
from deployments.gateway.pool.serve_controller import AllReplicas, Question, Starting
from router.board.load import LoadBoard


class StartWatch:
    """The outage and the starts of one pool.

    `startup_s`: the duration of a recent start, from its process to readiness, in seconds; by
    default the fleet file's value (`expected_s`); None: both are missing.
    """

    def __init__(
        self, pool: str, board: LoadBoard, replicas: Question[AllReplicas], expected_s: float | None
    ) -> None:
        self.expected_s = expected_s
        self._pool = pool
        self._board = board
        self._replicas = replicas
        self._measured_s: float | None = None
        # replica id -> loop time at which it got its place on a node; None: it waits for one
        self._began: dict[str, float | None] = {}

    @property
    def startup_s(self) -> float | None:
        return self._measured_s or self.expected_s

    async def look(self) -> Outage | None:
        """Return the current outage, for the scheduler; None if a replica is up, or may be."""
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
        # placed before the first look: use Unix time, although clocks of machines may differ
        return now - max(0.0, time.time() - starting.asked_at)
