"""The replica's snapshot in its lease: its load, for placement by gateways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from common.loops import failures
from deployments.engine.adapters.loaded_adapters import EngineAdapters
from deployments.engine.serving.lease_text import LeaseText
from deployments.engine.serving.sleep_mode import Sleeper
from deployments.engine.serving.tickets import Tickets
from deployments.engine.watchdog.hang import EngineHealth
from observability.metrics.metrics import ReplicaMetrics
from router.board.load import (
    EnginePace,
    LoadReport,
    ReplicaAdapters,
    ReplicaCache,
    ReplicaLoad,
    ReplicaQueue,
    Speculation,
)
from router.index.publisher import Lease

if TYPE_CHECKING:
    from deployments.engine.vllm.adapter import VllmEngine


@dataclass
class ReplicaState:
    """`leaving`: it finishes its requests and gets no others; `closed`: it stops listening."""

    health: EngineHealth = EngineHealth.HEALTHY
    leaving: bool = False
    closed: bool = False

    @property
    def is_suspect(self) -> bool:
        """Whether the engine may hang, or does."""
        return self.health is not EngineHealth.HEALTHY


@dataclass(frozen=True)
class ReplicaFacts:
    """Constant facts of a replica.

    `prefill_rate` in prompt tokens per second, until the engine has measured its own. `started_at`
    is when it was ready, in epoch seconds, and `startup_s` the duration.
    """

    replica_id: str
    url: str
    node_ip: str
    segment_tokens: int
    prefill_rate: float
    started_at: float
    startup_s: float


class QueueReports:
    """Numbers the replica's reports of its queue: gateways use the highest."""

    def __init__(self, engine: VllmEngine, sleeper: Sleeper) -> None:
        self._engine = engine
        self._sleeper = sleeper
        self._sequence = 0

    def next(self) -> LoadReport:
        self._sequence += 1
        waiting, *others = self._engine.queue()
        return LoadReport(self._sequence, ReplicaQueue(waiting + self._sleeper.waiting, *others))


@dataclass(frozen=True, eq=False)
class Snapshots:
    """Creates the text of each lease, and updates the replica's metrics. `taken_over`: as
    `Handovers.taken`; empty without handovers."""

    facts: ReplicaFacts
    state: ReplicaState
    engine: VllmEngine
    reports: QueueReports
    sleeper: Sleeper
    tickets: Tickets
    adapters: EngineAdapters
    taken_over: Mapping[str, tuple[int, int]]
    metrics: ReplicaMetrics
    signed: LeaseText

    def text(self, lease: Lease, index_lag_s: float) -> str:
        """Return the text. `index_lag_s`: the seconds by which the index is behind the engine's
        cache."""
        report = self.reports.next()
        self._count(report, lease, index_lag_s)
        return self.signed.of(self._load(report, lease, self._speculation()))

    def _speculation(self) -> Speculation | None:
        if (known := self.engine.speculation()) is None:
            return None
        self.metrics.speculation(**msgspec.structs.asdict(known))
        return Speculation(known.on, known.tokens_per_pass, known.speedup)

    def _count(self, report: LoadReport, lease: Lease, index_lag_s: float) -> None:
        metrics, grammars = self.metrics, self.engine.grammars
        metrics.queue(report.queue.waiting, report.queue.running, report.queue.prefill_tokens)
        metrics.index(index_lag_s, lease.synced)
        metrics.loops(failures)
        metrics.grammars(grammars.longest_wait_s, grammars.results)
        metrics.prefill(self.engine.stats.prefill_rate)
        metrics.tier_load("host", self.engine.stats.host_load_rate)
        metrics.tier_load("disk", self.engine.stats.disk_load_rate)
        metrics.tier_load("peer", self.engine.stats.peer_load_rate)
        if self.taken_over:
            metrics.handovers(self.taken_over)
        if (adapters := self.adapters).slots:
            metrics.adapters(len(adapters.resident), adapters.loads, adapters.load_s)

    def _load(
        self, report: LoadReport, lease: Lease, speculation: Speculation | None
    ) -> ReplicaLoad:
        facts, state, engine, stats = self.facts, self.state, self.engine, self.engine.stats
        busy = report.queue.waiting + report.queue.running > 0
        renderer = engine.renderer
        step_s, sequence_s = stats.step_time.line()
        return ReplicaLoad(
            replica_id=facts.replica_id,
            slot=lease.slot,
            incarnation=lease.incarnation,
            url=facts.url,
            node_ip=facts.node_ip,
            renderer=renderer.digest if renderer else "",
            sequence=report.sequence,
            arrived=self.tickets.lately_arrived(),
            started_at=facts.started_at,
            startup_s=facts.startup_s,
            max_sequences=engine.max_sequences,
            engines_at_once=engine.engines_at_once,
            max_model_len=engine.max_model_len,
            output_tokens=stats.output_tokens,
            asleep=self.sleeper.asleep,
            leaving=state.leaving,
            closed=state.closed,
            suspect=state.is_suspect,
            speculation=speculation,
            tells_serve=self.tickets.tells_serve,
            grammar_wait_s=engine.grammars.stuck_s,
            dtype=engine.dtype,
            peer=engine.peer,
            queue=report.queue,
            cache=ReplicaCache(
                use=stats.kv_use if busy else 0.0,
                capacity_tokens=engine.kv_capacity_tokens,
                segment_tokens=facts.segment_tokens,
                synced=lease.synced,
            ),
            pace=EnginePace(
                prefill_rate=stats.prefill_rate or facts.prefill_rate,
                inter_token_latency=stats.inter_token_latency if report.queue.running else 0.0,
                host_load_rate=stats.host_load_rate,
                disk_load_rate=stats.disk_load_rate,
                peer_load_rate=stats.peer_load_rate,
                prefill_learned=stats.prefill_rate is not None,
                step_s=step_s,
                sequence_s=sequence_s,
                decode_s=stats.decode_s,
            ),
            adapters=ReplicaAdapters(
                resident=self.adapters.resident,
                slots=self.adapters.slots,
                busy=self.adapters.busy,
                load_s=self.adapters.load_s,
            ),
        )
