"""A gateway's metrics of a pool's routing and admission (`observability.metrics.families`).

Possible events are counted from 0 on: a series that starts with its first error shows no increase.
Counts of requests go through the families' write buffer, and are visible once it is flushed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import nan
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter

from common.verdicts import VERDICTS, VerdictKind
from observability.metrics.families import Families
from observability.metrics.replica_families import (
    AdapterFamilies,
    HandoverFamilies,
    ReplicaFamilies,
    SpeculationFamilies,
)

_CAUSES = ("routing", "index", "engine")
TierWay = Literal["cache", "host", "disk", "peer", "prefill", "compute"]
TokenSource = Literal["cache", "host", "disk", "peer", "prefill", "computed"]
OfferingSource = Literal["host", "disk", "peer", "prefill"]
_STATES = ("active", "warm", "asleep", "suspect", "leaving", "starting", "stopping")
PRIORITIES = ("interactive", "batch")
# Unexpected ends of an engine, as `deployments.engine.start.deaths` classifies them.
ENGINE_DEATHS = ("died", "hung", "killed")
# Results for a constraint on an answer, as the engine's grammar gate counts them.
GRAMMAR_RESULTS = ("plain", "known", "fits", "rejected", "untried", "stopped")


@dataclass(frozen=True)
class Served:
    """One request that got its first token. Times are seconds; None: unknown."""

    policy: str
    signal: bool
    predicted_ttft_s: float | None
    prompt_tokens: int
    cached_predicted: int
    cached_confirmed: int | None
    new: int
    loss: Mapping[str, int]


@dataclass(frozen=True)
class ShadowChoice:
    """The choice of another policy. `regret`: the seconds of predicted TTFT that it would have
    saved."""

    policy: str
    agrees: bool
    regret: float


@dataclass(frozen=True)
class TierUse:
    """How a request gets the part of its prompt that its replica has. `tokens`: of the whole
    prompt, by source. `predicted_s` and `measured_s`: from the placement to the first token.
    `taken`: of each source outside the cache that has some, whether tokens come from it."""

    way: TierWay
    tokens: Mapping[TokenSource, int]
    predicted_s: float
    measured_s: float
    taken: Mapping[OfferingSource, bool] = field(default_factory=dict)


class RoutingMetrics:
    """The metrics of one pool."""

    def __init__(self, families: Families, pool: str) -> None:
        self._families = of = families
        self._buffer = families.buffer
        self._pool = pool
        self._labels = (pool,)
        self._has_tiers = False
        of.prompt_tokens.labels(pool)
        of.new_tokens.labels(pool)
        of.predicted_ttft.labels(pool)
        of.lookup_seconds.labels(pool)
        for source in ("predicted", "confirmed"):
            of.cached_tokens.labels(pool, source)
        for cause in _CAUSES:
            of.loss.labels(pool, cause)
        for result in ("ok", "failed", "skipped"):
            of.lookups.labels(pool, result)
        self._promotions = of.promotions.labels(pool)
        self._promotion_seconds = of.promotion_seconds.labels(pool)

    def served(self, served: Served) -> None:
        of, inc, pool = self._families, self._buffer.inc, self._pool
        inc(of.placements, (pool, served.policy, "index" if served.signal else "load"))
        inc(of.prompt_tokens, self._labels, served.prompt_tokens)
        inc(of.cached_tokens, (pool, "predicted"), served.cached_predicted)
        if served.cached_confirmed is not None:
            inc(of.cached_tokens, (pool, "confirmed"), served.cached_confirmed)
        inc(of.new_tokens, self._labels, served.new)
        for cause, tokens in served.loss.items():
            inc(of.loss, (pool, cause), tokens)
        if served.predicted_ttft_s is not None:
            self._buffer.observe(of.predicted_ttft, self._labels, served.predicted_ttft_s)

    def begin_tiers(self, peers: bool, prefill: bool) -> None:
        """Show the counts of `tiered` from 0 on. Other pools have no tiers. `peers`: the replicas
        of this one pull from each other. `prefill`: another pool computes prompts for it."""
        self._has_tiers = True
        absent = {name for name, used in (("peer", peers), ("prefill", prefill)) if not used}
        for way in get_args(TierWay):
            if way in absent:
                continue
            self._families.tier_requests.labels(self._pool, way)
            for time in ("predicted", "measured"):
                self._families.tier_ttft.labels(self._pool, way, time)
        for source in get_args(TokenSource):
            if source not in absent:
                self._families.tier_tokens.labels(self._pool, source)
        for source in get_args(OfferingSource):
            if source not in absent:
                for taken in ("yes", "no"):
                    self._families.tier_offers.labels(self._pool, source, taken)

    def tiered(self, use: TierUse) -> None:
        """Count a request of a pool with tiers; those of other pools are not counted."""
        if not self._has_tiers:
            return
        self._buffer.inc(self._families.tier_requests, (self._pool, use.way))
        ttft = self._families.tier_ttft
        self._buffer.inc(ttft, (self._pool, use.way, "predicted"), use.predicted_s)
        self._buffer.inc(ttft, (self._pool, use.way, "measured"), use.measured_s)
        for source, tokens in use.tokens.items():
            if not tokens:
                continue
            self._buffer.inc(self._families.tier_tokens, (self._pool, source), tokens)
        for offering, taken in use.taken.items():
            labels = (self._pool, offering, "yes" if taken else "no")
            self._buffer.inc(self._families.tier_offers, labels)

    def shadow(self, choice: ShadowChoice) -> None:
        of, inc = self._families, self._buffer.inc
        inc(of.shadow, (self._pool, choice.policy, "yes" if choice.agrees else "no"))
        inc(of.regret, (self._pool, choice.policy), max(0.0, choice.regret))

    def looked_up(self, seconds: float, result: str) -> None:
        """Count a lookup. `result`: ok, failed (over budget or an error) or skipped (breaker
        open)."""
        self._buffer.inc(self._families.lookups, (self._pool, result))
        if result != "skipped":
            self._buffer.observe(self._families.lookup_seconds, self._labels, seconds)

    def breaker(self, is_open: bool) -> None:
        self._families.breaker.labels(self._pool).set(is_open)

    def leases_forged(self, count: int) -> None:
        self._families.shared.leases_forged.labels(self._pool).set(count)

    def promoted(self) -> None:
        self._promotions.inc()

    def promotion(self, seconds: float) -> None:
        self._promotion_seconds.observe(seconds)

    def prediction_error(self, error: float | None) -> None:
        if error is not None:
            self._families.prediction_error.labels(self._pool).set(error)

    def replicas(self, states: Mapping[str, int], target: int) -> None:
        """Set the number of replicas in each state, and the target."""
        for state in _STATES:
            self._families.replicas.labels(self._pool, state).set(states.get(state, 0))
        self._families.target.labels(self._pool).set(target)

    def autoscaler(self, demand: float, arrivals: float, forecast: float | None) -> None:
        """Set the autoscaler's decision: replicas; requests per second, now and expected."""
        self._families.demand.labels(self._pool).set(demand)
        self._families.arrivals.labels(self._pool).set(arrivals)
        if forecast is not None:
            self._families.forecast.labels(self._pool).set(forecast)


class ProcessCounts:
    """Keep a counter with one label equal to the counts of processes since their start."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._told: dict[str, int] = {}

    def own(self, counts: Mapping[str, int]) -> None:
        """Update with this process's counts, by label."""
        for label, count in counts.items():
            self._told.setdefault(label, 0)
            self._tell(label, count)

    def heard(self, label: str, count: int) -> None:
        """Update with another process's count. Its count before the first report is ignored."""
        self._told.setdefault(label, count)
        self._tell(label, count)

    def _tell(self, label: str, count: int) -> None:
        told, self._told[label] = self._told[label], count
        # less than before: the process was restarted
        self._counter.labels(label).inc(count - told if count >= told else count)


class AdmissionMetrics:
    """Admission metrics of one pool."""

    def __init__(self, families: Families, pool: str) -> None:
        self._families = families
        self._pool = pool
        self._idle = families.warm_seconds.labels(pool)
        for decided in product(PRIORITIES, VERDICTS):
            families.admissions.labels(pool, *decided)
            families.outage_admissions.labels(pool, *decided)

    def decided(self, priority: str, verdict: VerdictKind) -> None:
        self._families.buffer.inc(self._families.admissions, (self._pool, priority, verdict))

    def decided_in_outage(self, priority: str, verdict: VerdictKind) -> None:
        """Count a decision made while no replica of the pool was up."""
        labels = self._pool, priority, verdict
        self._families.buffer.inc(self._families.outage_admissions, labels)

    def queued(self, priority: str, requests: int, oldest_s: float) -> None:
        """Set how many requests of the class are queued, and how long the oldest has waited."""
        of, is_batch = self._families, priority == "batch"
        queued = of.batch_queued if is_batch else of.interactive_queued
        oldest = of.batch_oldest if is_batch else of.interactive_oldest
        queued.labels(self._pool).set(requests)
        oldest.labels(self._pool).set(oldest_s)

    def idle(self, replica_s: float) -> None:
        if replica_s:
            self._idle.inc(replica_s)

    def outage(self, is_one: bool) -> None:
        self._families.outage.labels(self._pool).set(is_one)

    def overflow(self, is_open: bool, share: float) -> None:
        self._families.overflow_open.labels(self._pool).set(is_open)
        self._families.overflow_share.labels(self._pool).set(share)


class ReplicaMetrics:
    """The metrics of one engine replica, in its own process.

    `startup_s`: the seconds until it was ready. `calibrated`: the prompt tokens per second that it
    should compute, None if unknown. `registry`: None creates a separate one.
    """

    def __init__(
        self,
        startup_s: float,
        calibrated: float | None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._families = ReplicaFamilies(registry or CollectorRegistry())
        self._loops = ProcessCounts(self._families.loop_failures)
        self._grammars = ProcessCounts(self._families.grammars)
        self._speculation: SpeculationFamilies | None = None
        self._adapters: AdapterFamilies | None = None
        self._handovers: tuple[ProcessCounts, ProcessCounts] | None = None
        self._adapter_loads = 0
        self._is_suspect = False
        self._grammars.own(dict.fromkeys(GRAMMAR_RESULTS, 0))
        self._families.startup.set(startup_s)
        self._families.suspect.set(0)  # unset gauges are not collected
        if calibrated is not None:
            self._families.calibrated.set(calibrated)

    def started(self, phases: Mapping[str, float]) -> None:
        """Set the seconds of its start, by phase."""
        for phase, seconds in phases.items():
            self._families.start_phase.labels(phase).set(seconds)

    def queue(self, waiting: int, running: int, queued_prefill_tokens: int) -> None:
        self._families.waiting.set(waiting)
        self._families.running.set(running)
        self._families.queued_tokens.set(queued_prefill_tokens)

    def prefill(self, tokens_per_s: float | None) -> None:
        """Set the learned rate; None: nothing was computed yet."""
        if tokens_per_s is not None:
            self._families.prefill.set(tokens_per_s)

    def tier_load(self, source: str, tokens_per_s: float) -> None:
        """Set the learned rate of loads from a tier; 0: nothing was loaded yet."""
        if tokens_per_s:
            self._families.tier_load.labels(source).set(tokens_per_s)

    def speculation(
        self,
        on: bool,
        losing: bool,
        speedup: float | None,
        acceptance: float | None,
        tokens_per_pass: float | None,
        expected_tokens_per_pass: float | None,
    ) -> None:
        """Set the values of `SpeculationFamilies`; None: unknown."""
        if self._speculation is None:
            self._speculation = SpeculationFamilies(self._families.registry)
        of = self._speculation
        of.on.set(on)
        of.losing.set(losing)
        of.speedup.set(nan if speedup is None else speedup)
        of.acceptance.set(nan if acceptance is None else acceptance)
        of.tokens.set(nan if tokens_per_pass is None else tokens_per_pass)
        of.expected.set(nan if expected_tokens_per_pass is None else expected_tokens_per_pass)

    def grammars(self, longest_wait_s: float, results: Mapping[str, int]) -> None:
        """Set the engine's compile queue, and the results of constraints since the replica
        started."""
        self._families.grammar_wait.set(longest_wait_s)
        self._grammars.own(results)

    def adapters(self, resident: int, loads: int, load_s: float) -> None:
        """Set the LoRA adapters in the engine's memory, its loads, and their seconds."""
        if self._adapters is None:
            self._adapters = AdapterFamilies(self._families.registry)
        self._adapters.resident.set(resident)
        self._adapters.loads.inc(loads - self._adapter_loads)
        self._adapter_loads = loads
        self._adapters.load_seconds.set(load_s)

    def handovers(self, taken: Mapping[str, tuple[int, int]]) -> None:
        """Set the prefixes, and their tokens, that were pulled from other replicas so far, by the
        role of this one."""
        if self._handovers is None:
            of = HandoverFamilies(self._families.registry)
            self._handovers = ProcessCounts(of.prefixes), ProcessCounts(of.tokens)
        for index, counts in enumerate(self._handovers):
            counts.own({role: both[index] for role, both in taken.items()})

    def suspect(self, may_hang: bool) -> None:
        """Set whether the engine may hang. Called when that or its cause has changed."""
        if may_hang and not self._is_suspect:
            self._families.suspicions.inc()
        self._is_suspect = may_hang
        self._families.suspect.set(may_hang)

    def hung(self) -> None:
        """Count a hung engine that is stopped."""
        self._families.hangs.inc()

    def deaths(self, recent: Mapping[str, int]) -> None:
        """Set the recent deaths of the pool's engines on this node, by cause."""
        for cause in ENGINE_DEATHS:
            self._families.deaths.labels(cause).set(recent.get(cause, 0))

    def loops(self, failures: Mapping[str, int]) -> None:
        """Set the failures of this process's loops since its start."""
        self._loops.own(failures)

    def index(self, lag_s: float, synced: bool) -> None:
        """Set how far the index lags behind the engine's cache."""
        self._families.lag.set(lag_s)
        self._families.synced.set(synced)
