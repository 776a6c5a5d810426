"""Simulated engines in virtual time, behind a router that chooses among them.

Only engines in which something happens are advanced, so idle ones among a thousand cost nothing. A
router receives what a real one would, at the time at which it would.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from router.board.load_reader import READ_PERIOD_S
from router.index.kv_events import KvEvent
from simulator.cache.kv_tiers import ALL_LOADS, RequestedLoads, TierSettings
from simulator.engines import Hardware, Job, SimulatedEngine
from simulator.traces import Request


@dataclass(eq=False, slots=True)
class Visit:
    """One request at a replica; seconds of the trace's clock."""

    number: int
    request: Request
    gateway: int
    replica: int
    job: Job
    ended_at: float = math.inf

    @property
    def ttft_s(self) -> float:
        assert self.job.first_at is not None
        return self.job.first_at - self.request.at


class SimulatedReplicas:
    """`engines` and `requests` (how many are in each) by the replica's number. Each has its own
    `tiers`."""

    def __init__(self, hardware: Hardware, count: int, tiers: TierSettings | None = None) -> None:
        self.hardware = hardware
        self.tiers = tiers
        self.engines = [SimulatedEngine(hardware, tiers) for _ in range(count)]
        self.requests = [0] * count

    def __len__(self) -> int:
        return len(self.engines)


class Router(Protocol):
    """Chooses a replica for each request. `ticks`: whether it reads loads every READ_PERIOD_S."""

    ticks: bool = False

    @abstractmethod
    async def choose(self, number: int, request: Request, gateway: int, now: float) -> int:
        """The replica for request `number`."""

    def expected_cached(self, number: int) -> int:
        """Cached tokens that the gateway announces to the replica, for its report of its queue."""
        return 0

    def loads(self, number: int) -> RequestedLoads:
        """The loads from tiers that the gateway sends with a request."""
        return ALL_LOADS

    def tick(self, now: float) -> None:
        """All engines are at `now`."""
        return

    def told(self, replica: int, events: Sequence[KvEvent]) -> None:
        """An engine's KV events."""
        return

    def submitted(self, visit: Visit, now: float) -> None:
        """Its replica has it."""
        return

    def answering(self, visit: Visit, now: float) -> None:
        """Its first token came."""
        return

    def ended(self, visit: Visit) -> None:
        """Its last token came."""
        return


class VirtualFleet:
    """Plays requests on replicas, with a router in front."""

    def __init__(self, replicas: SimulatedReplicas, router: Router) -> None:
        self._replicas = replicas
        self._router = router
        self._visits: dict[str, Visit] = {}
        # (when, replica); an entry that `_wakes` contradicts is out of date
        self._heap: list[tuple[float, int]] = []
        self._wakes: list[float | None] = [None] * len(replicas)

    async def play(self, requests: Sequence[Request], gateways: Sequence[int]) -> list[Visit]:
        """All requests, until the last answer has ended. In the order of arrival."""
        visits: list[Visit] = []
        next_tick = 0.0 if self._router.ticks else math.inf
        while len(visits) < len(requests) or self._visits:
            arrives = requests[len(visits)].at if len(visits) < len(requests) else math.inf
            changes = self._heap[0][0] if self._heap else math.inf
            now = min(arrives, changes, next_tick)
            if now == next_tick:
                self._tick(now)
                next_tick += READ_PERIOD_S
            elif now == changes:
                _, replica = heapq.heappop(self._heap)
                if self._wakes[replica] == changes:
                    self._wakes[replica] = None
                    self._carry_on(replica, now)
            else:
                number = len(visits)
                visits.append(await self._arrive(number, requests[number], gateways[number]))
        return visits

    async def _arrive(self, number: int, request: Request, gateway: int) -> Visit:
        now = request.at
        replica = await self._router.choose(number, request, gateway, now)
        self._carry_on(replica, now, follow=False)
        job = Job.hashed(
            str(number),
            request.prompt_tokens,
            request.answer_tokens,
            request.blocks,
            self._router.expected_cached(number),
            self._router.loads(number),
        )
        visit = self._visits[job.ticket] = Visit(number, request, gateway, replica, job)
        self._replicas.requests[replica] += 1
        self._replicas.engines[replica].submit(job, now)
        self._router.submitted(visit, now)
        self._wake(replica)
        return visit

    def _tick(self, now: float) -> None:
        for replica in range(len(self._replicas)):
            if self._replicas.requests[replica]:
                self._carry_on(replica, now)
        self._router.tick(now)

    def _carry_on(self, replica: int, now: float, follow: bool = True) -> None:
        outcome = self._replicas.engines[replica].advance(now)
        if outcome.events:
            self._router.told(replica, outcome.events)
        for job, at in outcome.first_tokens:
            self._router.answering(self._visits[job.ticket], at)
        for job, at in outcome.finished:
            visit = self._visits.pop(job.ticket)
            visit.ended_at = at
            self._replicas.requests[replica] -= 1
            self._router.ended(visit)
        if follow:
            self._wake(replica)

    def _wake(self, replica: int) -> None:
        at = self._replicas.engines[replica].next_change_at
        if at != self._wakes[replica]:
            self._wakes[replica] = at
            if at is not None:
                heapq.heappush(self._heap, (at, replica))
