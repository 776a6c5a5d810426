"""Simulated replicas, each with a simulated engine: requested, starting, serving, draining, gone.

A fleet is a function of the times it is given. A replica has a GPU, and is paid for, from its
request until it has drained, or until its start is cancelled. Serving replicas are in order of age.
A smaller fleet removes the youngest, starting ones first, as Ray Serve does. A draining replica
finishes its requests, however long that takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autoscaling.admission.scheduling_request import Attempt
from autoscaling.slo import PriorityClass
from router.board.load import ReplicaLoad
from simulator.cache.kv_tiers import ALL_LOADS, RequestedLoads, TierSettings
from simulator.engines import Hardware, Job, SimulatedEngine
from simulator.traces import Request


@dataclass(eq=False)
class Call:
    """One request of the trace and its result; times in seconds of the trace's clock."""

    number: int
    request: Request
    # None: not at a replica (yet)
    replica: Replica | None = None
    overflowed: bool = False
    rejected_at: float | None = None
    placed_at: float | None = None
    attempt: Attempt | None = None
    first_at: float | None = None
    ended_at: float | None = None

    @property
    def priority(self) -> PriorityClass:
        return self.request.priority

    @property
    def ttft(self) -> float:
        """Return the seconds from its arrival to its first token, for a served request."""
        assert self.first_at is not None
        return self.first_at - self.request.at

    @property
    def tpot(self) -> float:
        """Return the mean seconds between its tokens; 0 for an answer of one."""
        assert self.first_at is not None
        assert self.ended_at is not None
        return (self.ended_at - self.first_at) / max(1, self.request.answer_tokens - 1)


@dataclass(eq=False)
class Replica:
    """A replica. `slot` is its number, unique in a fleet."""

    slot: int
    asked_at: float
    ready_at: float
    engine: SimulatedEngine
    calls: dict[str, Call] = field(default_factory=dict)
    draining: bool = False
    gone_at: float | None = None
    # whether it pulls from other replicas, and they from it
    peers: bool = False

    @property
    def name(self) -> str:
        return f"r{self.slot:04}"

    @property
    def requests(self) -> int:
        return len(self.calls)

    def load(self, segment_tokens: int) -> ReplicaLoad:
        """Return the load in the form of a real replica."""
        return ReplicaLoad(
            replica_id=self.name,
            slot=self.slot,
            incarnation=self.name,
            url="",
            node_ip="",
            peer=self.name if self.peers else "",
            **self.engine.load(segment_tokens),
        )

    def serves(self, block: int) -> bool:
        """Return whether other replicas can pull a block from it."""
        return self.gone_at is None and self.engine.serves(block)

    def submit(
        self, call: Call, expected_cached: int, now: float, loads: RequestedLoads = ALL_LOADS
    ) -> None:
        """Add a request. Raises ValueError for a request that never fits."""
        request = call.request
        job = Job.hashed(
            str(call.number),
            request.prompt_tokens,
            request.answer_tokens,
            request.blocks,
            expected_cached,
            loads,
        )
        self.engine.submit(job, now)
        call.replica, call.placed_at = self, now
        self.calls[job.ticket] = call

    def advance(self, now: float, progress: Progress) -> None:
        outcome = self.engine.advance(now)
        for job, at in outcome.first_tokens:
            call = self.calls[job.ticket]
            call.first_at = at
            progress.first_tokens.append(call)
        for job, at in outcome.finished:
            call = self.calls.pop(job.ticket)
            call.ended_at = at
            progress.finished.append(call)
            if self.draining and not self.calls:
                self.gone_at = at


@dataclass(frozen=True)
class Progress:
    """The calls that got their first or last token since the last call of `advance`."""

    first_tokens: list[Call] = field(default_factory=list)
    finished: list[Call] = field(default_factory=list)


class SimulatedFleet:
    """A fleet. `serving`: oldest first. Time never goes back."""

    def __init__(
        self,
        hardware: Hardware,
        startup_s: float,
        replicas: int,
        tiers: TierSettings | None = None,
    ) -> None:
        """Start with `replicas` serving replicas at time 0. Each has its own `tiers`."""
        self.hardware = hardware
        self.tiers = tiers
        self._startup_s = startup_s
        self._slots = 0
        self._paid_s = 0.0
        self._generated = 0
        # the oldest first, in each
        self.serving = [self._new(0.0, 0.0) for _ in range(replicas)]
        self.starting: list[Replica] = []
        self.draining: list[Replica] = []

    def scale_to(self, target: int, now: float) -> None:
        """Request missing replicas, or remove surplus ones."""
        for _ in range(target - len(self.serving) - len(self.starting)):
            self.starting.append(self._new(now, now + self._startup_s))
        while self.starting and len(self.serving) + len(self.starting) > target:
            self._paid_s += now - self.starting.pop().asked_at
        while len(self.serving) > target:
            replica = self.serving.pop()
            replica.draining = True
            if not replica.calls:
                replica.gone_at = now
            self.draining.append(replica)
        self._bury()

    def advance(self, now: float) -> Progress:
        progress = Progress()
        for replica in self.serving:
            replica.advance(now, progress)
        if self.draining:
            for replica in self.draining:
                replica.advance(now, progress)
            self._bury()
        while self.starting and self.starting[0].ready_at <= now:
            self.serving.append(self.starting.pop(0))
        return progress

    @property
    def paid(self) -> int:
        """Return how many replicas have a GPU now."""
        return len(self.serving) + len(self.starting) + len(self.draining)

    @property
    def requests(self) -> int:
        return sum(replica.requests for replica in (*self.serving, *self.draining))

    @property
    def generated(self) -> int:
        """Return the generated tokens so far."""
        living = sum(replica.engine.generated for replica in (*self.serving, *self.draining))
        return self._generated + living

    @property
    def next_ready_at(self) -> float | None:
        return self.starting[0].ready_at if self.starting else None

    @property
    def next_change_at(self) -> float | None:
        """Return when a request gets its first or last token, or a little before that."""
        times = (replica.engine.next_change_at for replica in (*self.serving, *self.draining))
        return min((at for at in times if at is not None), default=None)

    def replica_seconds(self, now: float) -> float:
        """Return the paid replica-seconds until now."""
        living = (*self.serving, *self.starting, *self.draining)
        return self._paid_s + sum(now - replica.asked_at for replica in living)

    def _bury(self) -> None:
        for replica in self.draining:
            if replica.gone_at is not None:
                self._paid_s += replica.gone_at - replica.asked_at
                self._generated += replica.engine.generated
        self.draining = [replica for replica in self.draining if replica.gone_at is None]

    def _new(self, asked_at: float, ready_at: float) -> Replica:
        self._slots += 1
        engine = SimulatedEngine(self.hardware, self.tiers)
        peers = self.tiers is not None and self.tiers.peers
        return Replica(self._slots - 1, asked_at, ready_at, engine, peers=peers)
