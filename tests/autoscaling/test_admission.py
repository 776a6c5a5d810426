"""Admission: which requests are admitted, queued, overflow or are rejected, by predicted TTFT
alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission import MAX_RETRY_AFTER_S, Admission, AdmissionCase, Verdict
from autoscaling.overflow import OverflowRules
from autoscaling.slo import PriorityClass, Slo
from autoscaling.waiting import Waiter
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


def test_the_time_that_has_passed_counts() -> None:
    assert decided([Seen(1.5)], elapsed_s=0.4).kind == "admit"
    assert decided([Seen(1.5)], elapsed_s=0.6).kind == "reject"


def test_a_request_beyond_the_slo_is_rejected_until_the_backlog_is_short() -> None:
    verdict = decided([Seen(9.0), Seen(6.2)])
    assert (verdict.kind, verdict.retry_after_s, verdict.best_ttft_s) == ("reject", 5, 6.2)
    assert decided([Seen(2.01)]).retry_after_s == 1


def test_predictions_are_trusted_as_far_as_they_have_been_right() -> None:
    admission = Admission(SLOS)

    def kind(ttft: float, doubt: float) -> str:
        return admission.decide(
            AdmissionCase("interactive", 0.0, [Seen(ttft)], None, 0.0, doubt=doubt)
        ).kind

    assert kind(1.9, 0.0) == "admit"
    assert kind(1.9, 0.25) == "reject"
    assert kind(1.6, 0.25) == "admit"
    # a pool whose predictions say nothing is not closed
    assert kind(1.3, 9.0) == kind(1.3, math.nan) == "admit"
    assert admission.is_lost(0.0, [Seen(1.9)], 0.25)
    assert not admission.is_lost(0.0, [Seen(1.6)], 0.25)


def test_a_replica_without_a_queue_admits_every_request() -> None:
    assert decided([Seen(9.0), idle(50.0)]).index == 1
    assert decided([idle(50.0)], priority="batch").kind == "admit"


@pytest.mark.parametrize("ranked", [[], [Seen(math.nan)], [Seen(math.inf)]])
def test_requests_without_a_prediction_are_admitted(ranked: list[Seen]) -> None:
    assert decided(ranked).kind == "admit"
    assert decided(ranked, priority="batch").kind == "admit"


def test_a_pool_without_an_slo_admits_every_request() -> None:
    assert decided([Seen(1e6)], admission=Admission({}, 10, None)).kind == "admit"


def test_time_per_output_token_is_held_as_well() -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)})
    slow, fast = Seen(0.1, 0.0, 0.06, running=3), Seen(0.1, 0.0, 0.05, running=3)
    assert decided([slow, fast], admission=admission).index == 1
    assert decided([slow], admission=admission).kind == "reject"
    stale = Seen(0.1, 0.0, 0.06, running=0)
    assert decided([stale], admission=admission).kind == "admit"


def test_a_batch_request_leaves_room_for_interactive_ones() -> None:
    assert decided([Seen(1.0)], priority="batch").kind == "admit"
    assert decided([Seen(1.1)], priority="batch").kind == "wait"
    assert decided([Seen(1.1)]).kind == "admit"


def test_a_batch_request_does_not_overtake_queued_requests() -> None:
    admission = Admission(SLOS, 10)
    waiting(admission, 1.0)
    assert decided([idle(0.1)], priority="batch", admission=admission).kind == "wait"


def test_a_batch_request_is_refused_when_its_turn_would_come_too_late() -> None:
    admission = Admission(SLOS, 10)
    waiting(admission, 56.0)
    assert decided([Seen(2.0), Seen(2.0)], None, "batch", admission).kind == "wait"
    waiting(admission, 2.5)
    verdict = decided([Seen(2.0), Seen(2.0)], None, "batch", admission)
    assert (verdict.kind, verdict.retry_after_s) == ("reject", 2)


def test_a_batch_request_is_refused_when_the_room_is_full() -> None:
    admission = Admission(SLOS, 1)
    waiting(admission, 0.1)
    assert decided([Seen(2.0)], None, "batch", admission).kind == "reject"
    assert decided([Seen(2.0)], [Seen(1.0)], "batch", Admission(SLOS, 0, RULES)).kind == "overflow"


def test_one_tenants_batch_queue_does_not_refuse_anothers_only_request() -> None:
    admission = Admission(SLOS, 40)
    for _ in range(40):
        waiting(admission, 2.0)
    assert decided([Seen(2.0)], None, "batch", admission).kind == "reject"
    other = admission.decide(AdmissionCase("batch", 0.0, [Seen(2.0)], None, 0.0, tenant="other"))
    assert other.kind == "wait"
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

    assert kind(1.0, 0.5, shared=False) == "admit"
    assert kind(1.0, 0.0) == "admit"
    assert kind(1.0, 0.5) == "wait"
    for _ in range(4):
        admission.interactive.enter(Waiter("one", "tenant", 1.0, 0.0))
    # not before queued requests, even where a replica is idle by now
    assert kind(0.1, 0.0) == "wait"
    assert kind(0.1, 0.0, tenant="tenant") == "reject"


def test_without_an_slo_who_shares_a_full_pool_waits_as_well() -> None:
    admission = Admission({}, 10, interactive_queue=1)

    def kind(priority: PriorityClass) -> str:
        seen = [Seen(9.0)]
        return admission.decide(AdmissionCase(priority, 0.0, seen, None, 0.0, shared=True)).kind

    assert kind("interactive") == kind("batch") == "wait"
    admission.interactive.enter(Waiter("one", "tenant", 1.0, 0.0))
    assert kind("interactive") == "reject"
    assert admission.may_leave(0.0, [Seen(9.0)], shared=True) is None
    assert admission.may_leave(0.0, [Seen(9.0)]) == 0


def test_a_queued_interactive_request_starts_where_none_would_wait_behind_it() -> None:
    admission = Admission({"interactive": Slo(2.0, tpot_s=0.05)}, 10)
    assert admission.may_begin([Seen(0.9, 0.5), Seen(1.0, 0.02)]) == 1
    assert admission.may_begin([Seen(0.9, 0.5)]) is None
    assert admission.may_begin([Seen(0.1, 0.0, 0.06, running=3)]) is None
    assert admission.may_begin([]) == 0


def test_interactive_requests_go_first_and_overdue_batch_ones_among_them() -> None:
    admission = Admission(SLOS, 10, interactive_queue=10)
    batch, interactive = Waiter("batch", "a", 1.0, 0.0), Waiter("chat", "b", 1.0, 0.0)
    admission.queue.enter(batch)
    assert admission.next_waiter(0.0) == ("batch", batch)
    admission.interactive.enter(interactive)
    assert admission.next_waiter(0.0) == ("interactive", interactive)
    admission.shares.charge("b", 5.0)
    assert admission.next_waiter(29.0) == ("interactive", interactive)
    assert admission.next_waiter(30.0) == ("batch", batch)


def test_one_that_waits_goes_while_half_of_the_interactive_slo_holds() -> None:
    admission = Admission(SLOS, 10)
    assert admission.may_leave(0.0, [Seen(1.1), Seen(1.0)]) == 1
    assert admission.may_leave(29.0, [Seen(1.1)]) is None
    # for the time that was promised
    assert admission.may_leave(30.0, [Seen(1.9)]) == 0
    assert admission.may_leave(30.0, [Seen(2.1)]) is None
    assert admission.may_leave(0.0, []) == 0


def test_a_request_beyond_the_slo_overflows_where_it_may() -> None:
    verdict = decided([Seen(3.0)], [Seen(2.5), Seen(1.0)])
    assert (verdict.kind, verdict.index) == ("overflow", 1)
    assert decided([Seen(3.0)], None).kind == "reject"
    assert decided([Seen(3.0)], []).kind == "overflow"  # the queue of that pool is unknown


def test_without_an_overflow_pool_nothing_overflows() -> None:
    assert decided([Seen(3.0)], [Seen(1.0)], admission=Admission(SLOS)).kind == "reject"


def test_a_full_overflow_pool_refuses_until_the_sooner_of_the_two() -> None:
    verdict = decided([Seen(9.0)], [Seen(4.5)])
    assert (verdict.kind, verdict.retry_after_s) == ("reject", 3)


def test_between_the_thresholds_a_pool_in_overload_recovers() -> None:
    admission = Admission(SLOS, 10, OverflowRules(1.0, 0.5, max_share=1.0))
    kinds = [
        decided([Seen(ttft)], [Seen(0.1)], admission=admission).kind
        for ttft in (1.5, 2.1, 1.5, 1.1, 1.0, 1.5)
    ]
    assert kinds == ["admit", "overflow", "overflow", "overflow", "admit", "admit"]


def test_in_overload_a_request_that_cannot_overflow_is_admitted_within_the_slo() -> None:
    admission = Admission(SLOS, 10, RULES)
    decided([Seen(3.0)], [Seen(0.1)], admission=admission)
    assert decided([Seen(1.5)], None, admission=admission).kind == "admit"
    assert decided([Seen(1.5)], [Seen(9.0)], admission=admission).kind == "admit"


def test_no_more_than_the_share_overflows() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.25))
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(100)]
    assert kinds.count("overflow") == 25
    assert "share" in decided([Seen(3.0)], [Seen(0.1)], admission=admission).reason


def test_a_batch_request_counts_for_the_share_once_and_only_when_it_is_decided() -> None:
    """It is asked about again and again while it waits, and would otherwise dilute the share."""
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))
    assert admission.gate is not None
    for _ in range(100):
        assert decided([Seen(3.0)], None, "batch", admission).kind == "wait"
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(20)]
    assert kinds.count("overflow") == 10
    # batch requests that are admitted at once are of the pool's traffic as well
    for _ in range(20):
        assert decided([idle(0.1)], None, "batch", admission).kind == "admit"
    assert admission.gate.share(0.0) == pytest.approx(10 / 40)


def test_one_that_asks_for_overflow_gets_it_or_nothing() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.01))

    def only(overflow: list[Seen] | None) -> Verdict:
        return admission.decide(AdmissionCase("interactive", 0.0, [idle(0.1)], overflow, 0.0, True))

    # no share caps a wish
    assert [only([Seen(1.0)]).kind for _ in range(3)] == ["overflow"] * 3
    # the own pool's idle replica is no remedy
    refused = only([Seen(9.0), Seen(6.2)])
    assert (refused.kind, refused.retry_after_s, refused.best_ttft_s) == ("reject", 5, None)
    assert only(None).kind == "reject"


def test_requests_that_ask_for_overflow_do_not_use_the_overflow_share() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))
    for _ in range(200):
        asked = admission.decide(
            AdmissionCase("interactive", 0.0, [idle(0.1)], [Seen(0.1)], 0.0, True)
        )
        assert asked.kind == "overflow"
    kinds = [decided([Seen(3.0)], [Seen(0.1)], admission=admission).kind for _ in range(20)]
    assert kinds.count("overflow") == 10


def test_one_tenants_overflow_leaves_the_others_their_share() -> None:
    admission = Admission(SLOS, 10, OverflowRules(max_share=0.5))

    def kind(tenant: str) -> str:
        lost, elsewhere = [Seen(3.0)], [Seen(0.1)]
        return admission.decide(
            AdmissionCase("interactive", 0.0, lost, elsewhere, 0.0, tenant=tenant)
        ).kind

    assert [kind("flood") for _ in range(200)].count("overflow") == 100
    assert [kind("other") for _ in range(20)].count("overflow") == 10


def test_while_no_replica_is_up_a_request_overflows_or_waits_for_one() -> None:
    assert decided([], [Seen(1.0)]).kind == "overflow"
    assert decided([], [Seen(9.0)]).kind == "admit"
    assert decided([], [Seen(1.0)], admission=Admission(SLOS)).kind == "admit"


def test_a_warm_replica_is_called_for_when_the_slo_is_lost_everywhere() -> None:
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
        if verdict.kind == "admit":
            assert verdict.index < max(1, len(ranked))
        elif verdict.kind == "overflow":
            assert overflow is not None
            assert verdict.index < max(1, len(overflow))
        elif verdict.kind == "reject":
            assert 1 <= verdict.retry_after_s <= MAX_RETRY_AFTER_S
        else:
            assert priority == "batch"
            waiting(admission, 1.0)
        assert len(admission.queue) <= 3
