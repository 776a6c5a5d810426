"""A gateway's metrics of whole requests, and of the objectives that they met or missed.

Each request is counted against the objectives of the requested pool, so the SLO's rules need no
thresholds and fit every fleet. Requests are recorded on arrival and counted in batches, which is
several times cheaper than one at a time.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import product
from math import nan
from typing import get_args

from observability.alerts.slo_file import Throughput
from observability.metrics.families import Families
from observability.metrics.metrics import PRIORITIES
from observability.metrics.traffic import ServedTraffic
from observability.traces.request_record import (
    AnswerEnd,
    Moved,
    Outcome,
    Phases,
    RequestRecord,
    Resumed,
    ResumeMode,
)

# Few enough that counting them delays no request.
AT_ONCE = 32
# A process never removes a series, so tenants or models beyond this number are counted as one.
NAMES_TOLD = 1000
OTHERS = "(others)"
# Outcomes that are counted by how the answer was resumed.
_RESUMING = ("resumed", "moved")
_MODES = tuple(filter(None, get_args(ResumeMode)))


@dataclass(frozen=True)
class Prices:
    """Prices per million tokens, in any one currency."""

    prompt: float
    cached: float
    output: float


@dataclass(frozen=True)
class Promise:
    """The objectives of one pool: `objectives` by priority class, then by name, in seconds.

    Their names are ttft, ttft_p50, tpot and e2e. `gpu_memory` is the share of a GPU's memory that
    the pool's engines allocate; None on CPUs.
    """

    objectives: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    prices: Prices | None = None
    throughput: Throughput | None = None
    gpu_memory: float | None = None


class RequestMetrics:
    """Metrics of all pools of one gateway: name to objectives. `under_way`: requests in
    progress.

    `traffic` gets the same counts by minute, for the page. `names_told`: as NAMES_TOLD.
    """

    def __init__(
        self,
        families: Families,
        promises: Mapping[str, Promise],
        traffic: ServedTraffic | None = None,
        names_told: int = NAMES_TOLD,
    ) -> None:
        self._names_told = names_told
        self.traffic = traffic or ServedTraffic()
        self._families = families
        self._buffer = families.buffer
        self._promises: dict[str, Promise] = {}
        self._tenants: set[str] = set()
        self._models: set[str] = set()
        self._adapters: set[str] = {""}
        self.under_way: dict[RequestRecord, None] = {}
        self._answered: deque[RequestRecord] = deque()
        self._ended: deque[tuple[RequestRecord, AnswerEnd]] = deque()
        # with a wrong key, the pool is unknown
        families.errors.labels("", "invalid_api_key")
        self.promise(promises)

    def promise(self, promises: Mapping[str, Promise]) -> None:
        """Count against these objectives from now on; a pool that is no longer named keeps its
        own."""
        for pool, promise in promises.items():
            before = self._promises.get(pool)
            if promise != before:
                self._promises[pool] = promise
                self._begin_at_zero(pool, promise)
                if before is not None:
                    self._withdraw(pool, before, promise)

    def _withdraw(self, pool: str, before: Promise, promise: Promise) -> None:
        """Withdraw objectives. A series cannot be removed while other processes share its file."""
        for priority, thresholds in before.objectives.items():
            for objective in thresholds.keys() - promise.objectives.get(priority, {}).keys():
                self._families.slo_threshold.labels(pool, priority, objective).set(nan)
        if before.throughput is not None and promise.throughput is None:
            for floor in (self._families.busy_rate, self._families.busy_from):
                floor.labels(pool).set(nan)
        if before.gpu_memory is not None and promise.gpu_memory is None:
            self._families.gpu_memory.labels(pool).set(nan)

    def _begin_at_zero(self, pool: str, promise: Promise) -> None:
        of = self._families
        of.inter_token.labels(pool), of.output_tokens.labels(pool)
        for counter, outcomes in ((of.resumed, Resumed), (of.moved, Moved)):
            for outcome in filter(None, get_args(outcomes)):
                for mode in _MODES if outcome in _RESUMING else ("",):
                    counter.labels(pool, outcome, mode)
        for phase in fields(Phases):
            of.ttft_phase.labels(pool, phase.name.removesuffix("_s"))
        for priority, outcome in product(PRIORITIES, get_args(Outcome)):
            of.requests.labels(pool, priority, outcome)
        if (floor := promise.throughput) is not None:
            of.busy_rate.labels(pool).set(floor.tokens_per_s)
            of.busy_from.labels(pool).set(floor.running)
        if promise.gpu_memory is not None:
            of.gpu_memory.labels(pool).set(promise.gpu_memory)
        for priority in PRIORITIES:
            for histogram in (of.ttft, of.tpot, of.duration):
                histogram.labels(pool, priority)
            thresholds = promise.objectives.get(priority, {})
            for objective, seconds in thresholds.items():
                of.slo_threshold.labels(pool, priority, objective).set(seconds)
            for objective in (*thresholds, "availability", "goodput"):
                for result in ("good", "bad"):
                    of.slo_events.labels(pool, priority, objective, result)

    def begun(self, record: RequestRecord) -> None:
        """Record a request that arrived; `record.facts.pool` is known."""
        self.under_way[record] = None

    def first_token(self, record: RequestRecord) -> None:
        self._answered.append(record)

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Record an ended request of any outcome, also one that failed before its pool was
        known."""
        self.under_way.pop(record, None)
        self._ended.append((record, end))
        if len(self._ended) >= AT_ONCE:
            self._count()

    def error(self, kind: str) -> None:
        """Count an error response to a request that is not for a model."""
        self._buffer.inc(self._families.errors, ("", kind))

    def refresh(self, now: float) -> None:
        """Update all metrics of the process; `now` is on the event loop's clock."""
        try:
            self._count()
        finally:
            self._buffer.flush()
        waiting = [record for record in self.under_way if record.ttft_s is None]
        queued = Tally(record.facts.pool for record in waiting)
        oldest: dict[str, float] = {}
        for record in waiting:  # the oldest is first
            oldest.setdefault(record.facts.pool, now - record.arrived)
        for pool in self._promises:
            self._families.queue.labels(pool).set(queued[pool])
            self._families.queue_oldest.labels(pool).set(oldest.get(pool, 0.0))

    def _count(self) -> None:
        while self._answered:
            self._count_answered(self._answered.popleft())
        while self._ended:
            self._count_ended(*self._ended.popleft())

    def _count_answered(self, record: RequestRecord) -> None:
        assert record.ttft_s is not None
        labels = (record.served_by, record.facts.priority)
        self._buffer.observe(self._families.ttft, labels, record.ttft_s)
        for phase, seconds in vars(record.phases).items():
            if seconds:  # most requests wait for no turn and have no failed attempt
                labels = (record.served_by, phase.removesuffix("_s"))
                self._buffer.observe(self._families.ttft_phase, labels, seconds)
        for objective in ("ttft", "ttft_p50"):
            self._judge(record, objective, record.ttft_s)

    def _count_ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        of, buffer, pool = self._families, self._buffer, record.served_by or record.facts.pool
        if end.error:
            buffer.inc(of.errors, (pool, end.error))
        if not pool:
            return
        if end.resumed:
            mode = end.resume_mode if end.resumed in _RESUMING else ""
            buffer.inc(of.resumed, (pool, end.resumed, mode))
        if end.moved:
            mode = end.resume_mode if end.moved in _RESUMING else ""
            buffer.inc(of.moved, (pool, end.moved, mode))
        whose, tpot_s = (pool, record.facts.priority), record.tpot_s(end)
        tenant = self._told_as(record.facts.tenant, self._tenants)
        model = self._told_as(record.facts.model, self._models)
        adapter = self._told_as(record.facts.adapter, self._adapters)
        buffer.inc(of.requests, (*whose, end.outcome))
        buffer.inc(of.tenant_requests, (tenant, pool, end.outcome))
        buffer.inc(of.model_requests, (model, adapter, pool, end.outcome))
        if end.outcome == "ok":
            buffer.observe(of.duration, whose, end.duration_s)
        if tpot_s is not None:
            buffer.observe(of.tpot, whose, tpot_s)
            self._judge(record, "tpot", tpot_s)
        if len(record.pieces_at) > 1:
            buffer.observe_all(of.inter_token, (pool,), record.gaps_s)
        self._judge_end(record, end)
        if end.outcome in ("ok", "failed", "deadline"):
            self._event(record, "availability", end.outcome == "ok")
        if end.outcome in ("ok", "failed", "deadline", "rejected") or self._left_late(record, end):
            is_good = self._kept_all(record, end, tpot_s)
            self._event(record, "goodput", is_good)
            self.traffic.count(pool, record.facts.tenant, {"good" if is_good else "bad": 1})
        self._count_tokens(record, end, tenant, (model, adapter, pool))

    def _told_as(self, name: str, told: set[str]) -> str:
        if len(told) < self._names_told:
            told.add(name)
        return name if name in told else OTHERS

    def _threshold(self, record: RequestRecord, objective: str) -> float | None:
        return (
            self._promises[record.facts.pool]
            .objectives.get(record.facts.priority, {})
            .get(objective)
        )

    def _judge(self, record: RequestRecord, objective: str, seconds: float) -> None:
        threshold = self._threshold(record, objective)
        if threshold is not None:
            self._event(record, objective, seconds <= threshold)

    def _judge_end(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Judge a whole answer by its end; any other is bad if it was due before it ended."""
        if self._threshold(record, "e2e") is None or end.outcome in ("invalid", "rejected"):
            return
        is_overdue = self._is_overdue(record, end)
        if is_overdue or end.outcome == "ok":
            self._event(record, "e2e", not is_overdue)

    def _is_overdue(self, record: RequestRecord, end: AnswerEnd) -> bool:
        """Return whether an answer took longer than allowed."""
        due_s = self._threshold(record, "e2e")
        return due_s is not None and end.duration_s > due_s

    def _event(self, record: RequestRecord, objective: str, good: bool) -> None:
        result = "good" if good else "bad"
        labels = (record.facts.pool, record.facts.priority, objective, result)
        self._buffer.inc(self._families.slo_events, labels)

    def _left_late(self, record: RequestRecord, end: AnswerEnd) -> bool:
        """Return whether its client left after an objective was missed."""
        due_s = self._threshold(record, "ttft")
        waited_s = end.duration_s if record.ttft_s is None else record.ttft_s
        is_late = (due_s is not None and waited_s > due_s) or self._is_overdue(record, end)
        return end.outcome == "cancelled" and is_late

    def _kept_all(self, record: RequestRecord, end: AnswerEnd, tpot_s: float | None) -> bool:
        ttft, tpot = self._threshold(record, "ttft"), self._threshold(record, "tpot")
        late = ttft is not None and (record.ttft_s is None or record.ttft_s > ttft)
        slow = tpot is not None and tpot_s is not None and tpot_s > tpot
        return end.outcome == "ok" and not (late or slow or self._is_overdue(record, end))

    def _count_tokens(
        self,
        record: RequestRecord,
        end: AnswerEnd,
        tenant: str,
        served: tuple[str, str, str],
    ) -> None:
        """`served`: the model, the adapter and the pool."""
        of, inc, pool = self._families, self._buffer.inc, served[-1]
        prompt, cached = record.prompt_tokens or 0, record.cached_tokens or 0
        output = end.output_tokens or 0
        inc(of.output_tokens, (pool,), output)
        amounts: dict[str, int] = {end.outcome: 1}
        for kind, tokens in (("prompt", prompt), ("cached", cached), ("output", output)):
            if tokens:
                inc(of.tenant_tokens, (tenant, pool, kind), tokens)
                inc(of.model_tokens, (*served, kind), tokens)
                amounts[f"{kind}_tokens"] = tokens
        self.traffic.count(pool, record.facts.tenant, amounts)
        if (prices := self._promises[pool].prices) is not None:
            cost = (
                (prompt - cached) * prices.prompt + cached * prices.cached + output * prices.output
            )
            inc(of.tenant_cost, (tenant, pool), cost / 1e6)
