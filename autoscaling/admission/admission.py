"""Decide whether a request is admitted, queued, overflowed or rejected, by predicted TTFT only.

A request goes to a replica that is predicted to meet its SLO. If there is none, a batch request is
queued. Any other request overflows if it may, and is otherwise rejected with the time after which
the backlog will be short enough. If tenants share a full pool, interactive requests are queued as
well, so that no tenant's queue fills the engines before another's request.

`autoscaling.admission.pool_scheduler` calls it for one pool in one gateway. Times are arguments, in
seconds of any one clock. Admission fails open: without candidates, predictions or an SLO, requests
are admitted. An idle replica also admits, so that wrong predictions can never close a pool for
good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from autoscaling.admission.fair_share import FairShare
from autoscaling.admission.outlook import (
    Outlook,
    doubted,
    first_holding,
    has_room,
    holds,
    is_slow,
    pressure,
)
from autoscaling.admission.overflow import OverflowGate, OverflowRules
from autoscaling.admission.waiting import Waiter, WaitingRoom
from autoscaling.slo import PriorityClass, Slo
from common.verdicts import VerdictKind

# A batch request starts only while this share of the interactive SLO is free. The rest is kept for
# interactive requests that arrive in the meantime.
BATCH_SHARE = 0.5
MAX_RETRY_AFTER_S = 3600
# The reason of an overflow, and of a rejection if the pool has no other.
NONE_IN_TIME = "no replica can meet the SLO"


@dataclass(frozen=True)
class Verdict:
    """A decision. `reason` completes "because ...". `index`: the candidate, of the own pool or
    (overflow) of the other.

    `best_ttft_s`: the best prediction in the own pool, None if unknown. `admitted_to_s`: the
    largest prediction that a rejected request could have had; None: the pool has no SLO. `outage`:
    True if the verdict was forced by a pool without replicas.
    """

    kind: VerdictKind
    reason: str
    index: int = 0
    retry_after_s: int = 0
    best_ttft_s: float | None = None
    outage: bool = False
    admitted_to_s: float | None = None


@dataclass(frozen=True)
class AdmissionCase:
    """One request in one pool; `now` and durations in seconds.

    `ranked`: the pool's replicas in the order of the routing policy. `overflow`: those of the
    overflow pool; None if it may not serve the request. `only_overflow`: the client requests the
    overflow pool only. `doubt`: the possible relative error of the pool's predictions
    (`TtftCorrection.expected_error`). The SLO counts as met only if it is met even with that error;
    the shorter queue costs no throughput. `shared`: other tenants have also been served lately.
    """

    priority: PriorityClass
    elapsed_s: float
    ranked: Sequence[Outlook]
    overflow: Sequence[Outlook] | None
    now: float
    only_overflow: bool = False
    doubt: float = 0.0
    tenant: str = ""
    shared: bool = False


class Admission:
    """The state of a pool's admission. `queue` has the queued batch requests, `interactive` the
    others; `shares` determines the next turn in both.

    `gate` is None without an overflow pool.
    """

    def __init__(
        self,
        slos: Mapping[PriorityClass, Slo],
        batch_queue: int = 0,
        overflow: OverflowRules | None = None,
        interactive_queue: int = 0,
    ) -> None:
        self._slos = slos
        self.shares = FairShare()
        self.queue: WaitingRoom[Any] = WaitingRoom(batch_queue, self.shares)
        self.interactive: WaitingRoom[Any] = WaitingRoom(interactive_queue, self.shares)
        self.gate = OverflowGate(overflow) if overflow else None

    def room_of(self, priority: PriorityClass) -> WaitingRoom[Any]:
        return self.interactive if priority == "interactive" else self.queue

    def change(
        self,
        slos: Mapping[PriorityClass, Slo],
        batch_queue: int = 0,
        overflow: OverflowRules | None = None,
        interactive_queue: int = 0,
    ) -> None:
        """Apply these settings from now on. Queued requests stay, and overflow counts are kept."""
        self._slos = slos
        self.queue.limit = batch_queue
        self.interactive.limit = interactive_queue
        if overflow is None or self.gate is None:
            self.gate = OverflowGate(overflow) if overflow else None
        else:
            self.gate.rules = overflow

    def decide(self, case: AdmissionCase) -> Verdict:
        """Decide one request, once."""
        if case.only_overflow:
            # this pool's state does not matter, and the request uses no tenant's share
            return self._elsewhere(case, math.inf)
        verdict = self._decide(case)
        if self.gate is not None and (verdict.kind != "queued" or case.priority == "interactive"):
            self.gate.count(verdict.kind == "overflowed", case.now, case.tenant)
        return verdict

    def decide_without_replica(
        self, case: AdmissionCase, up_in_s: float | None, patience_s: float
    ) -> Verdict:
        """Decide one request, once, in a pool without a replica: `decide` without candidates.

        `up_in_s`: when one is predicted to be up; None: unknown, and no request is rejected.
        `patience_s`: until the request's deadline. Overflow for this reason does not count against
        the share, which is for a busy pool.
        """
        slo, overflow = self._slo_of(case), case.overflow
        reason, due = "no replica of the model is running", math.inf
        if up_in_s is not None:
            reason += f"; one is expected to start within {up_in_s:.0f} s"
            due = case.elapsed_s + up_in_s
        verdict = partial(Verdict, reason=reason, best_ttft_s=up_in_s, outage=True)
        in_time = up_in_s is None or up_in_s < patience_s
        if case.priority == "batch" and in_time and self.queue.takes(case.tenant):
            return verdict("queued")
        if in_time and slo is not None and due <= slo.ttft_s:
            return verdict("admitted")
        if overflow and self.gate is not None:
            index = first_holding(overflow, slo, case.elapsed_s) if slo else 0
            if index is not None:
                return verdict("overflowed", index=index)
        if in_time:
            return verdict("admitted")
        excess = [of.predicted_ttft_s - slo.ttft_s for of in overflow or () if slo is not None]
        soonest = min([due - case.elapsed_s, *excess])
        return verdict("rejected", retry_after_s=whole_seconds(soonest))

    def confirm_overflow(
        self, verdict: Verdict, case: AdmissionCase, unfit: str | None = None
    ) -> Verdict:
        """Confirm a verdict to overflow, once the other pool has read the request; or reject it.

        `case.overflow`: the other pool's current replicas. `unfit`: why that pool cannot serve the
        request; None: it can.
        """
        overflow = case.overflow or ()
        if unfit is None and not self.is_lost(case.elapsed_s, overflow, case.doubt, case.priority):
            return verdict
        if self.gate is not None and not case.only_overflow and not verdict.outage:
            self.gate.take_back(case.now, case.tenant)
        reason = unfit or "other requests have filled the overflow model in the meantime"
        due = math.inf if verdict.best_ttft_s is None else verdict.best_ttft_s
        if unfit is None:
            due = min([due, *(candidate.predicted_ttft_s for candidate in overflow)])
        return _rejection(self._slos.get(case.priority), due, reason, verdict.best_ttft_s)

    def slo_of(self, priority: PriorityClass) -> Slo | None:
        """Return the objectives of a class; None: it has none."""
        return self._slos.get(priority)

    def is_lost(
        self,
        elapsed_s: float,
        ranked: Sequence[Outlook],
        doubt: float = 0.0,
        priority: PriorityClass = "interactive",
    ) -> bool:
        """Return whether such a request would miss its SLO on every one of these replicas."""
        slo = self._slos.get(priority)
        if slo is None or not ranked:
            return False
        return first_holding(ranked, doubted(slo, doubt), elapsed_s) is None

    def until_turn_s(
        self, priority: PriorityClass, ranked: Sequence[Outlook], tenant: str, shared: bool
    ) -> float:
        """Return the seconds until such a request has its turn; 0 if it needs none.

        The replicas work on the queue in parallel.
        """
        if priority == "batch":
            ahead_s = self.interactive.work_s + self.queue.ahead_s(tenant)
        elif self._is_full(priority, ranked, shared):
            ahead_s = self.interactive.ahead_s(tenant)
        else:
            return 0.0
        return ahead_s / max(1, len(ranked))

    def next_waiter(self, now: float) -> tuple[PriorityClass, Waiter[Any]] | None:
        """Return the next queued request: interactive ones first, and overdue batch requests with
        them."""
        interactive, batch = self.interactive.next(), self.queue.next()
        if interactive is None:
            return None if batch is None else ("batch", batch)
        slo, had = self._slos.get("batch"), self.shares.had
        overdue = batch is not None and slo is not None and now - batch.since >= slo.ttft_s
        if batch is not None and overdue and had(batch.tenant) < had(interactive.tenant):
            return "batch", batch
        return "interactive", interactive

    def may_begin(self, ranked: Sequence[Outlook]) -> int | None:
        """Return the target of the next interactive request; None: it stays queued."""
        if not ranked:
            return 0
        slo = self._slos.get("interactive")
        # not the cheapest replica if it is slow: other requests would wait behind this one there
        fit = (i for i, of in enumerate(ranked) if has_room(of) and not is_slow(of, slo))
        return next(fit, None)

    def may_leave(
        self, waited_s: float, ranked: Sequence[Outlook], shared: bool = False
    ) -> int | None:
        """Return the target of the next batch request; None: it stays queued.

        After a wait of the length of its SLO it goes like an interactive one. If other tenants are
        served as well (`shared`), none goes to a replica where others would wait for it.
        """
        batch, interactive = self._slos.get("batch"), self._slos.get("interactive")
        limit = interactive or batch
        if not ranked:
            return 0
        if limit is None:
            return self.may_begin(ranked) if shared else 0
        overdue = batch is not None and waited_s >= batch.ttft_s
        if interactive is not None and not overdue:
            limit = replace(limit, ttft_s=BATCH_SHARE * limit.ttft_s)
        fit = (
            i
            for i, candidate in enumerate(ranked)
            if holds(candidate, limit, 0.0) and (has_room(candidate) or not shared)
        )
        return next(fit, None)

    def _is_full(self, priority: PriorityClass, ranked: Sequence[Outlook], shared: bool) -> bool:
        """Return whether such a request must wait for its turn, so that it does not overtake
        another tenant's."""
        if not ranked:
            return False
        waiting = len(self.interactive) or (priority == "batch" and len(self.queue))
        return bool(waiting) or (shared and not any(map(has_room, ranked)))

    def _slo_of(self, case: AdmissionCase) -> Slo | None:
        """Return the SLO that a prediction must meet."""
        slo = self._slos.get(case.priority)
        return doubted(slo, case.doubt) if slo else None

    def _decide(self, case: AdmissionCase) -> Verdict:
        slo, ranked, priority = self._slo_of(case), case.ranked, case.priority
        best = min((c.predicted_ttft_s for c in ranked), default=math.nan)
        if not ranked and case.overflow:
            verdict = self._elsewhere(case, best)
            waits = Verdict("admitted", "no replica of the model is running yet")
            return verdict if verdict.kind == "overflowed" else waits
        if not math.isfinite(best):
            return Verdict(
                "admitted", "the pool has no SLO" if slo is None else "no prediction exists"
            )
        due = best + self.until_turn_s(priority, ranked, case.tenant, case.shared)
        is_full = self._is_full(priority, ranked, case.shared)
        if is_full and (priority == "interactive" or slo is None):
            return self._in_turn(case, due)
        if slo is None:
            return Verdict("admitted", "the pool has no SLO")
        if priority == "interactive":
            going = first_holding(ranked, slo, case.elapsed_s)
            if self.gate is not None:
                self.gate.update(pressure(ranked, slo, case.elapsed_s), case.tenant)
        else:
            going = None if is_full else self.may_leave(0.0, ranked, case.shared)
        within = Verdict("admitted", "the SLO is met", going or 0, best_ttft_s=best)
        if going is not None and not self._should_recover(ranked[going].wait_s, case):
            return within
        if priority == "batch" and self.queue.takes(case.tenant) and due <= slo.ttft_s:
            return Verdict("queued", "it is not its turn yet", best_ttft_s=best)
        verdict = self._elsewhere(case, due)
        return within if verdict.kind == "rejected" and going is not None else verdict

    def _in_turn(self, case: AdmissionCase, due: float) -> Verdict:
        """Decide a request to a full pool that others share. `due`: seconds until its first token
        in its turn."""
        slo, due_s = self._slo_of(case), due + case.elapsed_s
        waits = Verdict("queued", "other tenants share the pool, which is full", best_ttft_s=due)
        is_held = self.room_of(case.priority).takes(case.tenant)
        if slo is not None:
            if self.gate is not None:
                self.gate.update(due_s / slo.ttft_s, case.tenant)
            too_slow = all(is_slow(candidate, slo) for candidate in case.ranked)
            is_held = is_held and not too_slow and due_s <= slo.ttft_s
        if is_held and not self._should_recover(due, case):
            return waits
        verdict = self._elsewhere(case, due)
        return waits if verdict.kind == "rejected" and is_held else verdict

    def _should_recover(self, wait_s: float, case: AdmissionCase) -> bool:
        """Return whether the request overflows between the thresholds, where those that may
        overflow do."""
        gate = self.gate
        if gate is None or not gate.is_open_for(case.tenant):
            return False
        return wait_s > 0.0 and bool(case.overflow)

    def _elsewhere(self, case: AdmissionCase, due: float) -> Verdict:
        """Decide about overflow. `due`: seconds until this pool would give the request a first
        token."""
        slo, overflow, only = self._slo_of(case), case.overflow, case.only_overflow
        best = due if math.isfinite(due) else None
        alone = "only the overflow model may answer it"
        reason = alone if only else NONE_IN_TIME
        if overflow is not None and self.gate is not None:
            index = first_holding(overflow, slo, case.elapsed_s) if slo and overflow else 0
            if index is None:
                due = min(due, *(c.predicted_ttft_s for c in overflow))
                reason = "the overflow model cannot meet the SLO" + ("" if only else " either")
            elif only or self.gate.has_room(case.now, case.tenant):
                return Verdict("overflowed", reason, index, 0, best)
            else:
                reason = "the tenant has reached the share of its requests that may overflow"
        return _rejection(slo, due, reason, best)


def _rejection(slo: Slo | None, due: float, reason: str, best_ttft_s: float | None) -> Verdict:
    # a backlog shrinks by one second per second
    excess = due - slo.ttft_s if slo is not None else 0.0
    most = None if slo is None else slo.ttft_s
    return Verdict("rejected", reason, 0, whole_seconds(excess), best_ttft_s, admitted_to_s=most)


def whole_seconds(seconds: float) -> int:
    """Return whole seconds for Retry-After: at least 1, and 1 if the time is unknown (infinite)."""
    whole = math.ceil(seconds) if math.isfinite(seconds) else 1
    return max(1, min(whole, MAX_RETRY_AFTER_S))
