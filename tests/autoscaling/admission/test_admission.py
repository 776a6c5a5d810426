"""Admission: which requests are admitted, queued, overflow or are rejected, by predicted TTFT
alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.admission import MAX_RETRY_AFTER_S, Admission, AdmissionCase, Verdict
from autoscaling.admission.overflow import OverflowRules
from autoscaling.admission.waiting import Waiter
from autoscaling.slo import PriorityClass, Slo
from tests.autoscaling.outlooks import Seen, idle

SLOS: dict[PriorityClass, Slo] = {"interactive": Slo(2.0), "batch": Slo(30.0)}
RULES = OverflowRules(enter=1.0, leave=0.5, max_share=0.5)


def decided(
    ranked: Sequence[Seen],
    overflow: Sequence[Seen] | None = None,
    priority: PriorityClass = "interactive",
    admission: Admission | None = None,
    elapsed_s: float = 0.0,
) -> Verdict:
    admission = admission or Admission(SLOS, 10, RULES)
    return admission.decide(
        AdmissionCase(priority, elapsed_s, ranked, overflow, now=0.0, tenant="tenant")
    )


def waiting(admission: Admission, work_s: float) -> None:
    admission.queue.enter(Waiter("one", "tenant", work_s, 0.0))


def test_admission_takes_the_first_ranked_replica_that_meets_the_slo() -> None:
    assert decided([Seen(1.9), Seen(0.1)]).index == 0
    assert decided([Seen(2.1), Seen(3.0), Seen(1.5), Seen(0.1)]).index == 2


def test_the_time_since_arrival_counts_against_the_slo() -> None:
    assert decided([Seen(1.5)], elapsed_s=0.4).kind == "admitted"
    assert decided([Seen(1.5)], elapsed_s=0.6).kind == "rejected"


def test_a_request_beyond_the_slo_is_rejected_until_the_backlog_is_short() -> None:
    verdict = decided([Seen(9.0), Seen(6.2)])
    assert (verdict.kind, verdict.retry_after_s, verdict.best_ttft_s) == ("rejected", 5, 6.2)
    assert decided([Seen(2.01)]).retry_after_s == 1


def test_admission_trusts_predictions_according_to_their_past_accuracy() -> None:
    admission = Admission(SLOS)

    def kind(ttft: float, doubt: float) -> str:
        return admission.decide(
            AdmissionCase("interactive", 0.0, [Seen(ttft)], None, 0.0, doubt=doubt)
        ).kind

    assert kind(1.9, 0.0) == "admitted"
    assert kind(1.9, 0.25) == "rejected"
    assert kind(1.6, 0.25) == "admitted"
    # a pool whose predictions say nothing is not closed
    assert kind(1.3, 9.0) == kind(1.3, math.nan) == "admitted"
    assert admission.is_lost(0.0, [Seen(1.9)], 0.25)
    assert not admission.is_lost(0.0, [Seen(1.6)], 0.25)


def test_a_replica_without_a_queue_admits_every_request() -> None:
    assert decided([Seen(9.0), idle(50.0)]).index == 1
    assert decided([idle(50.0)], priority="batch").kind == "admitted"


@pytest.mark.parametrize("ranked", [[], [Seen(math.nan)], [Seen(math.inf)]])
def test_requests_without_a_prediction_are_admitted(ranked: list[Seen]) -> None:
    assert decided(ranked).kind == "admitted"
    assert decided(ranked, priority="batch").kind == "admitted"


def test_a_pool_without_an_slo_admits_every_request() -> None:
    assert decided([Seen(1e6)], admission=Admission({}, 10, None)).kind == "admitted"


def test_admission_also_applies_the_tpot_objective() -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)})
    slow, fast = Seen(0.1, 0.0, 0.06, running=3), Seen(0.1, 0.0, 0.05, running=3)
    assert decided([slow, fast], admission=admission).index == 1
    assert decided([slow], admission=admission).kind == "rejected"
    stale = Seen(0.1, 0.0, 0.06, running=0)
    assert decided([stale], admission=admission).kind == "admitted"


def test_a_batch_request_is_admitted_at_half_of_the_interactive_slo() -> None:
    assert decided([Seen(1.0)], priority="batch").kind == "admitted"
    assert decided([Seen(1.1)], priority="batch").kind == "queued"
    assert decided([Seen(1.1)]).kind == "admitted"


def test_a_batch_request_does_not_overtake_queued_requests() -> None:
    admission = Admission(SLOS, 10)
    waiting(admission, 1.0)
    assert decided([idle(0.1)], priority="batch", admission=admission).kind == "queued"


def test_a_batch_request_is_refused_when_its_turn_would_be_too_late() -> None:
    admission = Admission(SLOS, 10)
    waiting(admission, 56.0)
    assert decided([Seen(2.0), Seen(2.0)], None, "batch", admission).kind == "queued"
    waiting(admission, 2.5)
    verdict = decided([Seen(2.0), Seen(2.0)], None, "batch", admission)
    assert (verdict.kind, verdict.retry_after_s) == ("rejected", 2)


def test_a_batch_request_is_refused_when_the_queue_is_full() -> None:
    admission = Admission(SLOS, 1)
    waiting(admission, 0.1)
    assert decided([Seen(2.0)], None, "batch", admission).kind == "rejected"
    assert (
        decided([Seen(2.0)], [Seen(1.0)], "batch", Admission(SLOS, 0, RULES)).kind == "overflowed"
    )


def test_one_tenants_batch_queue_does_not_refuse_anothers_only_request() -> None:
    admission = Admission(SLOS, 40)
    for _ in range(40):
        waiting(admission, 2.0)
    assert decided([Seen(2.0)], None, "batch", admission).kind == "rejected"
    other = admission.decide(AdmissionCase("batch", 0.0, [Seen(2.0)], None, 0.0, tenant="other"))
    assert other.kind == "queued"
    evicted = admission.queue.enter(Waiter("its", "other", 2.0, 0.0))
    assert evicted is not None
    assert evicted.tenant == "tenant"


def test_requests_to_a_full_shared_pool_queue_while_that_meets_the_slo() -> None:
    admission = Admission(SLOS, 10, interactive_queue=10)

    def kind(ttft: float, wait_s: float, shared: bool = True, tenant: str = "other") -> str:
        seen = [Seen(ttft, wait_s)]
        return admission.decide(
            AdmissionCase("interactive", 0.0, seen, None, 0.0, tenant=tenant, shared=shared)
        ).kind

    assert kind(1.0, 0.5, shared=False) == "admitted"
    assert kind(1.0, 0.0) == "admitted"
    assert kind(1.0, 0.5) == "queued"
    for _ in range(4):
        admission.interactive.enter(Waiter("one", "tenant", 1.0, 0.0))
    # not before queued requests, even where a replica is idle by now
    assert kind(0.1, 0.0) == "queued"
    assert kind(0.1, 0.0, tenant="tenant") == "rejected"


@pytest.mark.parametrize(("inter_token_latency", "kind"), [(0.05, "queued"), (0.06, "rejected")])
def test_a_full_shared_pool_with_slow_streams_does_not_queue_requests(
    inter_token_latency: float, kind: str
) -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)}, 10, interactive_queue=10)
    full = [Seen(0.5, 0.5, inter_token_latency, running=3)]
    case = AdmissionCase("interactive", 0.0, full, None, 0.0, tenant="other", shared=True)
    assert admission.decide(case).kind == kind


def test_one_fast_replica_is_enough_to_queue_in_a_full_shared_pool() -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)}, 10, interactive_queue=10)
    full = [Seen(0.5, 0.5, 0.06, running=3), Seen(0.5, 0.5, 0.04, running=3)]
    case = AdmissionCase("interactive", 0.0, full, None, 0.0, tenant="other", shared=True)
    assert admission.decide(case).kind == "queued"


def test_without_an_slo_requests_to_a_full_shared_pool_queue() -> None:
    admission = Admission({}, 10, interactive_queue=1)

    def kind(priority: PriorityClass) -> str:
        seen = [Seen(9.0)]
        return admission.decide(AdmissionCase(priority, 0.0, seen, None, 0.0, shared=True)).kind

    assert kind("interactive") == kind("batch") == "queued"
    admission.interactive.enter(Waiter("one", "tenant", 1.0, 0.0))
    assert kind("interactive") == "rejected"
    assert admission.may_leave(0.0, [Seen(9.0)], shared=True) is None
    assert admission.may_leave(0.0, [Seen(9.0)]) == 0


def test_a_queued_interactive_request_starts_where_no_other_would_wait_behind_it() -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)}, 10)
    assert admission.may_begin([Seen(0.9, 0.5), Seen(1.0, 0.02)]) == 1
    assert admission.may_begin([Seen(0.9, 0.5)]) is None
    assert admission.may_begin([Seen(0.1, 0.0, 0.06, running=3)]) is None
    assert admission.may_begin([]) == 0


def test_overdue_batch_requests_take_turns_with_interactive_ones() -> None:
    admission = Admission(SLOS, 10, interactive_queue=10)
    batch, interactive = Waiter("batch", "a", 1.0, 0.0), Waiter("chat", "b", 1.0, 0.0)
    admission.queue.enter(batch)
    assert admission.next_waiter(0.0) == ("batch", batch)
    admission.interactive.enter(interactive)
    assert admission.next_waiter(0.0) == ("interactive", interactive)
    # among equals, even an overdue batch request lets the interactive one go first
    assert admission.next_waiter(30.0) == ("interactive", interactive)
    admission.shares.charge("b", 5.0)
    assert admission.next_waiter(29.0) == ("interactive", interactive)
    assert admission.next_waiter(30.0) == ("batch", batch)


def test_without_an_slo_or_a_batch_request_interactive_requests_go_first() -> None:
    admission = Admission({}, 10, interactive_queue=10)
    interactive = Waiter("chat", "b", 1.0, 0.0)
    assert admission.next_waiter(0.0) is None
    admission.interactive.enter(interactive)
    assert admission.next_waiter(99.0) == ("interactive", interactive)
    admission.queue.enter(Waiter("batch", "a", 1.0, 0.0))
    assert admission.next_waiter(99.0) == ("interactive", interactive)


@pytest.mark.parametrize(("replicas", "turn_s"), [(0, 4.0), (1, 4.0), (2, 2.0), (4, 1.0)])
def test_replicas_work_on_the_queue_in_parallel(replicas: int, turn_s: float) -> None:
    admission = Admission(SLOS, 10)
    waiting(admission, 4.0)
    ranked = [Seen(1.0)] * replicas
    assert admission.until_turn_s("batch", ranked, "tenant", shared=False) == turn_s


def test_a_queued_request_starts_within_half_of_the_interactive_slo_until_it_is_overdue() -> None:
    admission = Admission(SLOS, 10)
    assert admission.may_leave(0.0, [Seen(1.1), Seen(1.0)]) == 1
    assert admission.may_leave(29.0, [Seen(1.1)]) is None
    # for the time that was promised
    assert admission.may_leave(30.0, [Seen(1.9)]) == 0
    assert admission.may_leave(30.0, [Seen(2.1)]) is None
    assert admission.may_leave(0.0, []) == 0


def test_a_request_beyond_the_slo_overflows_where_it_may() -> None:
    verdict = decided([Seen(3.0)], [Seen(2.5), Seen(1.0)])
    assert (verdict.kind, verdict.index) == ("overflowed", 1)
    assert decided([Seen(3.0)], None).kind == "rejected"
    assert decided([Seen(3.0)], []).kind == "overflowed"  # the queue of that pool is unknown


def test_without_an_overflow_pool_nothing_overflows() -> None:
    assert decided([Seen(3.0)], [Seen(1.0)], admission=Admission(SLOS)).kind == "rejected"


def test_retry_after_of_a_full_overflow_pool_is_that_of_the_earlier_pool() -> None:
    verdict = decided([Seen(9.0)], [Seen(4.5)])
    assert (verdict.kind, verdict.retry_after_s) == ("rejected", 3)


def test_between_the_thresholds_a_pool_in_overload_recovers() -> None:
    admission = Admission(SLOS, 10, OverflowRules(1.0, 0.5, max_share=1.0))
    kinds = [
        decided([Seen(ttft)], [Seen(0.1)], admission=admission).kind
        for ttft in (1.5, 2.1, 1.5, 1.1, 1.0, 1.5)
    ]
    assert kinds == ["admitted", "overflowed", "overflowed", "overflowed", "admitted", "admitted"]


def test_in_overload_a_request_that_cannot_overflow_is_admitted_within_the_slo() -> None:
    admission = Admission(SLOS, 10, RULES)
    decided([Seen(3.0)], [Seen(0.1)], admission=admission)
    assert decided([Seen(1.5)], None, admission=admission).kind == "admitted"
    assert decided([Seen(1.5)], [Seen(9.0)], admission=admission).kind == "admitted"


def test_no_more_than_the_share_overflows() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.25))
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(100)]
    assert kinds.count("overflowed") == 25
    assert "share" in decided([Seen(3.0)], [Seen(0.1)], admission=admission).reason


def test_a_batch_request_counts_for_the_share_once_and_only_when_it_is_decided() -> None:
    """It is asked about again and again while it waits, and would otherwise dilute the share."""
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))
    assert admission.gate is not None
    for _ in range(100):
        assert decided([Seen(3.0)], None, "batch", admission).kind == "queued"
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(20)]
    assert kinds.count("overflowed") == 10
    # batch requests that are admitted at once are of the pool's traffic as well
    for _ in range(20):
        assert decided([idle(0.1)], None, "batch", admission).kind == "admitted"
    assert admission.gate.share(0.0) == pytest.approx(10 / 40)


def test_a_request_that_demands_overflow_overflows_or_is_rejected() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.01))

    def only(overflow: list[Seen] | None) -> Verdict:
        return admission.decide(AdmissionCase("interactive", 0.0, [idle(0.1)], overflow, 0.0, True))

    # no share caps a wish
    assert [only([Seen(1.0)]).kind for _ in range(3)] == ["overflowed"] * 3
    # the own pool's idle replica is no remedy
    refused = only([Seen(9.0), Seen(6.2)])
    assert (refused.kind, refused.retry_after_s, refused.best_ttft_s) == ("rejected", 5, None)
    assert only(None).kind == "rejected"


def test_requests_that_ask_for_overflow_do_not_use_the_overflow_share() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))
    for _ in range(200):
        asked = admission.decide(
            AdmissionCase("interactive", 0.0, [idle(0.1)], [Seen(0.1)], 0.0, True)
        )
        assert asked.kind == "overflowed"
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(20)]
    assert kinds.count("overflowed") == 10


OVERFLOWED = Verdict("overflowed", "no replica can meet the SLO", best_ttft_s=3.0)


def overflowing() -> Admission:
    """An admission whose tenant has used a tenth of its requests for overflow."""
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.1))
    for _ in range(9):
        assert decided([idle(0.1)], admission=admission).kind == "admitted"
    assert decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind == "overflowed"
    assert share_of(admission) == pytest.approx(0.1)
    return admission


def share_of(admission: Admission) -> float:
    assert admission.gate is not None
    return admission.gate.share(0.0)


def confirmed(
    admission: Admission,
    verdict: Verdict = OVERFLOWED,
    overflow: Sequence[Seen] = (Seen(0.1),),
    unfit: str | None = None,
    only: bool = False,
) -> Verdict:
    case = AdmissionCase("interactive", 0.0, (), overflow, 0.0, only, tenant="tenant")
    return admission.confirm_overflow(verdict, case, unfit)


def test_an_overflow_that_the_other_pool_takes_is_confirmed() -> None:
    admission = overflowing()
    assert confirmed(admission) == OVERFLOWED
    assert share_of(admission) == pytest.approx(0.1)


@pytest.mark.parametrize("unfit", ["it is too long", None])
def test_an_overflow_that_the_other_pool_does_not_take_is_given_back(unfit: str | None) -> None:
    admission = overflowing()
    assert confirmed(admission, overflow=[Seen(6.2)], unfit=unfit).kind == "rejected"
    assert share_of(admission) == 0.0


@pytest.mark.parametrize(
    ("verdict", "only"),
    [(replace(OVERFLOWED, outage=True), False), (OVERFLOWED, True)],
    ids=["the own pool had no replica", "the client asked for it"],
)
def test_an_overflow_that_was_never_counted_is_not_given_back(verdict: Verdict, only: bool) -> None:
    """Otherwise each would open a share that the tenant has used already."""
    admission = overflowing()
    for _ in range(20):
        assert confirmed(admission, verdict, unfit="it is too long", only=only).kind == "rejected"
    assert share_of(admission) == pytest.approx(0.1)
    assert decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind == "rejected"


def test_retry_after_of_a_failed_overflow_is_that_of_the_earlier_pool() -> None:
    filled = confirmed(overflowing(), overflow=[Seen(4.5), Seen(2.5)])
    assert (filled.retry_after_s, filled.best_ttft_s) == (1, 3.0)
    assert "filled the overflow model" in filled.reason
    later = confirmed(overflowing(), replace(OVERFLOWED, best_ttft_s=9.0), [Seen(6.2)])
    assert later.retry_after_s == 5
    # without a prediction for the own pool, the other one decides
    unknown = replace(OVERFLOWED, best_ttft_s=None)
    assert confirmed(overflowing(), unknown, [Seen(6.2)]).retry_after_s == 5
    assert confirmed(overflowing(), unknown, unfit="too long").retry_after_s == 1
    # the settings may have changed since, to ones without overflow
    assert confirmed(Admission(SLOS), unfit="too long").kind == "rejected"
    # a pool that cannot serve it will not do so later: only the own one counts
    unfit = confirmed(overflowing(), replace(OVERFLOWED, best_ttft_s=9.0), [Seen(2.5)], "too long")
    assert (unfit.reason, unfit.retry_after_s) == ("too long", 7)


def test_one_tenants_overflow_leaves_the_others_their_share() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))

    def kind(tenant: str) -> str:
        lost, elsewhere = [Seen(3.0)], [Seen(0.1)]
        return admission.decide(
            AdmissionCase("interactive", 0.0, lost, elsewhere, 0.0, tenant=tenant)
        ).kind

    assert [kind("flood") for _ in range(200)].count("overflowed") == 100
    assert [kind("other") for _ in range(20)].count("overflowed") == 10


def test_while_no_replica_is_up_a_request_overflows_or_waits_for_one() -> None:
    assert decided([], [Seen(1.0)]).kind == "overflowed"
    assert decided([], [Seen(9.0)]).kind == "admitted"
    assert decided([], [Seen(1.0)], admission=Admission(SLOS)).kind == "admitted"


def test_a_warm_replica_is_requested_when_no_replica_meets_the_slo() -> None:
    admission = Admission(SLOS)
    assert admission.is_lost(0.0, [Seen(2.1), Seen(3.0)])
    assert admission.is_lost(0.5, [Seen(1.6)])
    assert not admission.is_lost(0.0, [Seen(2.1), Seen(2.0)])
    assert not admission.is_lost(0.0, [Seen(2.1), idle(9.0)])
    assert not admission.is_lost(0.0, [])
    assert not Admission({}).is_lost(0.0, [Seen(1e6)])


numbers = st.floats() | st.sampled_from([0.0, 1.0, math.nan, math.inf, -1.0])
seen = st.builds(Seen, numbers, numbers, numbers, st.integers(-1, 9))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["interactive", "batch"]),
            numbers,
            st.lists(seen, max_size=4),
            st.none() | st.lists(seen, max_size=3),
            st.floats(0, 1e6),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_every_request_gets_one_usable_verdict_for_any_prediction(
    asked: list[tuple[PriorityClass, float, list[Seen], list[Seen] | None, float, bool]],
) -> None:
    admission = Admission(SLOS, 3, RULES)
    for priority, elapsed_s, ranked, overflow, now, only in asked:
        verdict = admission.decide(AdmissionCase(priority, elapsed_s, ranked, overflow, now, only))
        if verdict.kind == "admitted":
            assert verdict.index < max(1, len(ranked))
        elif verdict.kind == "overflowed":
            assert overflow is not None
            assert verdict.index < max(1, len(overflow))
        elif verdict.kind == "rejected":
            assert 1 <= verdict.retry_after_s <= MAX_RETRY_AFTER_S
        else:
            assert priority == "batch"
            waiting(admission, 1.0)
        assert len(admission.queue) <= 3
