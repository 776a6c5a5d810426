"""Pools of different accelerators under one model name, on simulated engines in virtual time.

For each request the product chooses a pool (`deployments.gateway.pool.scheduling.choose`), and that
pool's gateway admits and places it. The product's autoscaler scales each pool by its own requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from autoscaling.admission.scheduling_request import PoolSettings
from autoscaling.slo import Slo
from deployments.fleet.pool import Price
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.pool import scheduling
from observability.traces.request_record import RequestFacts, RequestRecord
from router.board.load import ReplicaLoad
from simulator.autoscaler import AutoscaledGateway
from simulator.engines import Hardware
from simulator.fleet import Call, Progress, Replica, SimulatedFleet
from simulator.gateway import ScheduledFleet
from simulator.types import FleetSettings

PATH = "/v1/chat/completions"
# Sequences that share the fixed time of a decode step, where tokens are priced.
FULL_BATCH = 32


@dataclass(frozen=True)
class AcceleratorKind:
    """A kind of accelerator. `price`: of one replica for an hour, in any currency."""

    name: str
    hardware: Hardware
    price: float
    first_replicas: int
    max_replicas: int

    @property
    def token_seconds(self) -> tuple[float, float]:
        """Return a replica's seconds for one prompt token and for one generated token, in full
        batches."""
        hardware = self.hardware
        return 1 / hardware.prefill_rate, hardware.sequence_s + hardware.step_s / FULL_BATCH


@dataclass(frozen=True)
class PoolChooser:
    """How a pool is chosen.

    `price`: what choices compare, for each kind. `report`: what the router receives of a replica's
    load.
    """

    price: Callable[[AcceleratorKind], Price]
    report: Callable[[AcceleratorKind, ReplicaLoad], ReplicaLoad]
    seed: int = 0


def by_cost(kind: AcceleratorKind) -> Price:
    """Price tokens by what a replica costs while it computes them."""
    prompt, output = (kind.price / 3600 * 1e6 * seconds for seconds in kind.token_seconds)
    return Price(prompt=prompt, output=output)


def by_speed(kind: AcceleratorKind) -> Price:
    """The faster a kind is, the cheaper."""
    prompt, output = (1e6 * seconds for seconds in kind.token_seconds)
    return Price(prompt=prompt, output=output)


def told(kind: AcceleratorKind, load: ReplicaLoad) -> ReplicaLoad:
    """Report the true rates."""
    true = kind.hardware
    pace = replace(
        load.pace,
        prefill_rate=true.prefill_rate,
        prefill_learned=True,
        step_s=true.step_s,
        sequence_s=true.sequence_s,
    )
    return replace(load, pace=pace)


def learned(prior: float) -> Callable[[AcceleratorKind, ReplicaLoad], ReplicaLoad]:
    """Report measured rates, and this prior until there are any."""

    def report(kind: AcceleratorKind, load: ReplicaLoad) -> ReplicaLoad:
        if load.pace.prefill_learned:
            return load
        return replace(load, pace=replace(load.pace, prefill_rate=prior))

    return report


class KindPool:
    """The pool of one kind: its fleet, and its gateway with admission and autoscaling."""

    def __init__(
        self,
        kind: AcceleratorKind,
        chooser: PoolChooser,
        slo: Slo,
        startup_s: float,
        segment_tokens: int,
    ) -> None:
        self.kind = kind
        self.fleet = SimulatedFleet(kind.hardware, startup_s, kind.first_replicas)
        self.scheduled = ScheduledFleet(
            self.fleet,
            PoolSettings({"interactive": slo}),
            segment_tokens,
            chooser.seed,
            report=lambda load: chooser.report(kind, load),
        )
        settings = FleetSettings(kind.hardware, startup_s, slo, max_replicas=kind.max_replicas)
        self.gateway = AutoscaledGateway(self.scheduled, settings)
        self.calls: set[int] = set()
        # what `choose` asks of a gateway's pool
        self._offering: Any = SimpleNamespace(
            name=kind.name,
            scheduler=self.scheduled.scheduler,
            settings=SimpleNamespace(price=chooser.price(kind), prefill=None),
            prefill=None,
        )

    def read(self, call: Call, record: RequestRecord, now: float) -> scheduling.Read:
        """Return the request as a gateway reads it for this pool."""
        self.scheduled.look(now)
        request = self.scheduled.request(call)
        engine = EngineRequest(
            record.facts.request_id,
            request.tenant,
            PATH,
            b"",
            cache_salt=None,
            model=self.kind.name,
            arrived=request.arrived,
            deadline=math.inf,
            timeout_s=math.inf,
            timeout_limit_s=math.inf,
            record=record,
        )
        options = RequestOptions(request.priority, request.overflow, request.policy)
        prompt = Prompt(request.prompt, True, request.depths, 0.0, 0.0)
        return self._offering, PoolRequest(engine, {}, {}, options, prompt)

    def own(self, calls: Sequence[Call]) -> list[Call]:
        return [call for call in calls if call.number in self.calls]


class CompetingPools:
    """All kinds behind one name: a `simulation.Stack` and its `simulation.FleetInPlay`."""

    def __init__(self, pools: Sequence[KindPool]) -> None:
        self.by_kind = {pool.kind.name: pool for pool in pools}
        self._fleets = [pool.fleet for pool in pools]

    def arrive(self, call: Call, now: float) -> None:
        pool = self.by_kind[self._choice(call, now)]
        pool.calls.add(call.number)
        pool.gateway.arrive(call, now)

    def _choice(self, call: Call, now: float) -> str:
        facts = RequestFacts(str(call.number), call.request.tenant, PATH)
        record = RequestRecord(facts, call.request.at)
        offering, _ = scheduling.choose([p.read(call, record, now) for p in self.by_kind.values()])
        if not record.facts.offers:
            raise RuntimeError("choosing failed, see the log")
        return offering.name

    def progressed(self, progress: Progress, now: float) -> None:
        for pool in self.by_kind.values():
            own = Progress(pool.own(progress.first_tokens), pool.own(progress.finished))
            pool.gateway.progressed(own, now)

    def tick(self, now: float) -> Mapping[str, float | str]:
        for pool in self.by_kind.values():
            pool.gateway.tick(now)
        return {}

    @property
    def waiting(self) -> int:
        return sum(pool.gateway.waiting for pool in self.by_kind.values())

    @property
    def active(self) -> int:
        return sum(pool.gateway.active for pool in self.by_kind.values())

    @property
    def serving(self) -> list[Replica]:
        return [replica for fleet in self._fleets for replica in fleet.serving]

    @property
    def starting(self) -> list[Replica]:
        return [replica for fleet in self._fleets for replica in fleet.starting]

    @property
    def paid(self) -> int:
        return sum(fleet.paid for fleet in self._fleets)

    @property
    def requests(self) -> int:
        return sum(fleet.requests for fleet in self._fleets)

    @property
    def next_ready_at(self) -> float | None:
        return _earliest([fleet.next_ready_at for fleet in self._fleets])

    @property
    def next_change_at(self) -> float | None:
        return _earliest([fleet.next_change_at for fleet in self._fleets])

    def advance(self, now: float) -> Progress:
        whole = Progress()
        for fleet in self._fleets:
            progress = fleet.advance(now)
            whole.first_tokens.extend(progress.first_tokens)
            whole.finished.extend(progress.finished)
        return whole

    def replica_seconds(self, now: float) -> float:
        return sum(fleet.replica_seconds(now) for fleet in self._fleets)


def _earliest(times: Sequence[float | None]) -> float | None:
    return min((at for at in times if at is not None), default=None)
