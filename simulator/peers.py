"""A fleet under another autoscaler, with the usual routing and with Antefix's.

The usual routing takes the less busy of two random replicas, with at most the number of requests
that its engine runs at once. The rest queue in front, first come, first served, without rejections.
Idealizations: queue lengths are exact, and a request that found both replicas full goes as soon as
any has room. A removed replica finishes its requests, however long that takes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Protocol

from simulator.fleet import Call, Progress, Replica, SimulatedFleet
from simulator.gateway import ScheduledFleet, SimulatedGateway


class Autoscaler(Protocol):
    def scale(self, fleet: SimulatedFleet, queued: int, now: float) -> None:
        """Scale the fleet, called once a second; `queued` requests wait outside of the replicas."""
        ...


class ScaledGateway(SimulatedGateway):
    """Antefix's routing and admission on a fleet that another autoscaler scales."""

    def __init__(self, pool: ScheduledFleet, autoscaler: Autoscaler) -> None:
        super().__init__(pool)
        self._autoscaler = autoscaler

    def tick(self, now: float) -> Mapping[str, float | str]:
        self._autoscaler.scale(self._pool.fleet, self.waiting, now)
        return {}


class AllAt:
    """An autoscaler that requests all replicas at a given time, in seconds of the trace.

    No autoscaler that requests them later can attain more.
    """

    def __init__(self, at: float, replicas: int) -> None:
        self._at = at
        self._replicas = replicas

    def scale(self, fleet: SimulatedFleet, queued: int, now: float) -> None:
        if now >= self._at:
            fleet.scale_to(self._replicas, now)


class PlainStack:
    """A fleet with the usual routing: a `simulation.Stack`."""

    def __init__(self, fleet: SimulatedFleet, autoscaler: Autoscaler, seed: int) -> None:
        self._fleet = fleet
        self._autoscaler = autoscaler
        self._max_ongoing_requests = fleet.hardware.sequences
        self._rng = random.Random(seed)
        self._queue: deque[Call] = deque()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def active(self) -> int:
        return len(self._fleet.serving)

    def arrive(self, call: Call, now: float) -> None:
        self._queue.append(call)
        self._dispatch(now)

    def progressed(self, progress: Progress, now: float) -> None:
        self._dispatch(now)

    def tick(self, now: float) -> Mapping[str, float | str]:
        self._autoscaler.scale(self._fleet, self.waiting, now)
        return {}

    def _dispatch(self, now: float) -> None:
        while self._queue:
            replica = self._choice()
            if replica is None:
                return
            replica.submit(self._queue.popleft(), 0, now)

    def _choice(self) -> Replica | None:
        serving = self._fleet.serving
        two = self._rng.sample(serving, min(2, len(serving)))
        accepting = [r for r in two if r.requests < self._max_ongoing_requests]
        if not accepting:
            accepting = [r for r in serving if r.requests < self._max_ongoing_requests]
        return min(accepting, key=lambda replica: replica.requests, default=None)
