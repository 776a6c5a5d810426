"""A pool without a replica: what is left of a start decides, and only where that is certain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from autoscaling.admission.admission import Admission, AdmissionCase, Verdict
from autoscaling.admission.outage import FRESH_S, LATE_SHARE, Outage, confirmed
from autoscaling.admission.overflow import OverflowRules
from autoscaling.admission.pool_scheduler import FOUND_OUT_S, PoolScheduler
from autoscaling.admission.scheduling_request import Decision, PoolSettings, SchedulingRequest
from autoscaling.slo import PriorityClass, Slo
from router.choice.policies import PlacementRequest
from router.index.slots import LEASE_S
from tests.autoscaling.hand_clock import HandClock
from tests.autoscaling.outlooks import Seen
from tests.router.loads import pool

SLOS: dict[PriorityClass, Slo] = {"interactive": Slo(2.0), "batch": Slo(30.0)}
RULES = OverflowRules(max_share=0.1)
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("startup_s", "began", "up_in_s"),
    [
        (None, (), None),
        (None, (90.0,), None),
        (20.0, (), 20.0),  # none has begun, or found its place yet
        (20.0, (95.0,), 15.0),
        (20.0, (95.0, 85.0), 5.0),
        (20.0, (79.0,), 20.0 * LATE_SHARE),
        (20.0, (50.0,), 30.0),  # half a minute late: it may be as late again
        (20.0, (50.0, 99.0), 19.0),
        (20.0, (101.0,), 20.0),  # clocks of two machines
    ],
)
def test_the_remaining_time_of_a_start_is_predicted(
    startup_s: float | None, began: tuple[float, ...], up_in_s: float | None
) -> None:
    assert Outage(90.0, 100.0, startup_s, began).up_in_s(100.0) == up_in_s


@pytest.mark.parametrize(
    ("empty_for_s", "as_of", "certain"),
    [
        (LEASE_S, 100.0, True),
        (LEASE_S - 0.01, 100.0, False),  # who is replaced may be back
        (0.0, 100.0, False),
        (60.0, 100.0 - FRESH_S, True),
        (60.0, 99.9 - FRESH_S, False),  # Ray Serve says nothing any more
        (3.0, 97.0, True),
        (3.0, 96.9, False),  # from when a replica was on the board
    ],
)
def test_an_outage_needs_reports_of_both_redis_and_ray_serve(
    empty_for_s: float, as_of: float, certain: bool
) -> None:
    told = Outage(90.0, as_of)
    assert confirmed(told, empty_for_s, 100.0) == (told if certain else None)
    assert confirmed(None, empty_for_s, 100.0) is None


def decided(
    up_in_s: float | None,
    overflow: list[Seen] | None = None,
    priority: PriorityClass = "interactive",
    batch_queue: int = 0,
    elapsed_s: float = 0.0,
) -> Verdict:
    admission = Admission(SLOS, batch_queue, RULES)
    case = AdmissionCase(priority, elapsed_s, (), overflow, now=0.0)
    return admission.decide_without_replica(case, up_in_s, PATIENCE_S)


@pytest.mark.parametrize(
    ("up_in_s", "overflow", "kind"),
    [
        (1.9, [Seen(0.1)], "admitted"),  # the SLO will be held
        (2.1, [Seen(0.1)], "overflowed"),
        (90.0, [Seen(0.1)], "overflowed"),
        (None, [Seen(0.1)], "overflowed"),
        (59.0, None, "admitted"),  # late, and answered
        (59.0, [], "admitted"),  # the other has none either
        (59.0, [Seen(9.0)], "admitted"),
        (61.0, None, "rejected"),
        (61.0, [Seen(9.0)], "rejected"),
        (None, None, "admitted"),
        (None, [Seen(9.0)], "admitted"),
    ],
)
def test_a_pool_without_a_replica_queues_overflows_or_rejects_by_start_time(
    up_in_s: float | None, overflow: list[Seen] | None, kind: str
) -> None:
    verdict = decided(up_in_s, overflow)
    assert (verdict.kind, verdict.outage) == (kind, True)


def test_retry_after_is_the_time_until_the_request_can_be_served() -> None:
    assert decided(61.2).retry_after_s == 62
    assert decided(1e9).retry_after_s == 3600
    # the other pool's backlog is worked off before
    assert decided(61.2, [Seen(9.0)]).retry_after_s == 7


def test_a_batch_request_queues_for_a_start_that_is_in_time() -> None:
    assert decided(20.0, [Seen(0.1)], "batch", batch_queue=1).kind == "queued"
    assert decided(None, None, "batch", batch_queue=1).kind == "queued"
    assert decided(61.0, [Seen(0.1)], "batch", batch_queue=1).kind == "overflowed"
    assert decided(61.0, None, "batch", batch_queue=1).kind == "rejected"
    assert decided(40.0, None, "batch").kind == "admitted"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def small(clock: HandClock) -> PoolScheduler:
    scheduler = PoolScheduler(clock)
    scheduler.board.update(pool(1).values())
    return scheduler


@pytest.fixture
def lost(clock: HandClock, small: PoolScheduler) -> PoolScheduler:
    """Of a pool whose only replica went a while ago, and takes 100 s to start."""
    scheduler = PoolScheduler(clock, PoolSettings(SLOS, 2, RULES), small)
    scheduler.board.update(pool(1).values())
    is_empty_for(scheduler, clock, LEASE_S)
    report_outage(scheduler, clock, 100.0)
    small.board.update(pool(1).values())
    assert scheduler.outage is not None
    return scheduler


def is_empty_for(scheduler: PoolScheduler, clock: HandClock, seconds: float) -> None:
    scheduler.board.update([])
    for _ in range(math.ceil(seconds)):
        clock.now += seconds / math.ceil(seconds)
        scheduler.board.update([])


def report_outage(scheduler: PoolScheduler, clock: HandClock, startup_s: float | None) -> None:
    since = clock.now - scheduler.board.empty_for_s
    scheduler.told_of_outage = Outage(since, clock.now, startup_s)


def request(clock: HandClock, **fields: Any) -> SchedulingRequest:
    fields = {"deadline": clock.now + PATIENCE_S, **fields}
    return SchedulingRequest(PlacementRequest(100), {}, clock.now, **fields)


def decide(scheduler: PoolScheduler, asked: SchedulingRequest) -> Decision:
    return scheduler.decide(asked, scheduler.consider(asked))


def test_all_requests_overflow_during_an_outage_without_using_the_overflow_share(
    lost: PoolScheduler, small: PoolScheduler, clock: HandClock
) -> None:
    for _ in range(13):  # as the small pool has room for
        asked = decide(lost, request(clock))
        assert small.stand_in(asked.request, lost, asked).verdict.kind == "overflowed"
        small.board.update(pool(1).values())
    assert lost.admission.gate is not None
    assert lost.admission.gate.share(clock.now) == 0.0
    assert (lost.demand.arrived, lost.demand.overflowed) == (13, 13)


@pytest.mark.parametrize(("startup_s", "kind"), [(100.0, "rejected"), (50.0, "admitted")])
@pytest.mark.parametrize("unfit", ["it is too long", None])
def test_a_request_that_the_other_pool_does_not_take_queues_or_is_rejected(
    lost: PoolScheduler,
    small: PoolScheduler,
    clock: HandClock,
    startup_s: float,
    kind: str,
    unfit: str | None,
) -> None:
    report_outage(lost, clock, startup_s)
    asked = decide(lost, request(clock))
    assert asked.verdict.kind == "overflowed"
    if unfit is None:
        small.board.update(pool(1, waiting=1, queued_prefill_tokens=90_000).values())
    final = small.stand_in(asked.request, lost, asked, unfit)
    assert (final.verdict.kind, final.verdict.outage) == (kind, True)
    assert (final.attempt is not None) == (kind == "admitted")
    assert lost.demand.arrived == 1
    assert lost.refresh_demand().waiting == (kind == "admitted")


def test_a_rejected_request_counts_as_demand(lost: PoolScheduler, clock: HandClock) -> None:
    verdict = decide(lost, request(clock, overflow="never")).verdict
    assert (verdict.kind, verdict.retry_after_s) == ("rejected", 100)
    assert (lost.demand.arrived, lost.demand.rejected) == (1, 1)


def test_an_overflow_that_a_request_demands_is_not_attributed_to_the_outage(
    lost: PoolScheduler, clock: HandClock
) -> None:
    verdict = decide(lost, request(clock, overflow="only")).verdict
    assert (verdict.kind, verdict.outage) == ("overflowed", False)


def test_queued_requests_start_only_once_a_replica_is_up(
    lost: PoolScheduler, clock: HandClock
) -> None:
    report_outage(lost, clock, 50.0)
    waiter = decide(lost, request(clock, priority="batch")).waiter
    assert waiter is not None
    assert (lost.next_turn(), lost.refresh_demand().waiting) == (None, 1)
    lost.board.update(pool(1).values())
    turn = lost.next_turn()
    assert turn is not None
    assert turn[0] is waiter
    assert turn[1].chosen is not None


def test_queued_requests_are_not_sent_to_replicas_that_may_be_gone(clock: HandClock) -> None:
    scheduler = PoolScheduler(clock, PoolSettings(SLOS, 2))
    scheduler.board.update(pool(1, waiting=1, queued_prefill_tokens=1500).values())
    waiter = decide(scheduler, request(clock, priority="batch")).waiter
    assert waiter is not None
    is_empty_for(scheduler, clock, 1.0)
    assert scheduler.next_turn() is None
    # no gateway has confirmed that they are gone: they may be where Redis is not
    is_empty_for(scheduler, clock, FOUND_OUT_S)
    turn = scheduler.next_turn()
    assert turn is not None
    assert turn[0] is waiter


def test_a_request_that_is_decided_twice_counts_as_one_arrival(
    lost: PoolScheduler, clock: HandClock
) -> None:
    asked = request(clock, overflow="never")
    decide(lost, asked)
    decide(lost, replace(asked, is_again=True))
    assert (lost.demand.arrived, lost.demand.prompt_tokens) == (1, 100)


def test_a_pool_without_a_replica_receives_no_overflow(
    lost: PoolScheduler, clock: HandClock
) -> None:
    other = PoolScheduler(clock, PoolSettings(SLOS, 0, RULES), lost)
    other.board.update(pool(1, waiting=1, queued_prefill_tokens=9000).values())
    decision = decide(other, request(clock))
    assert (decision.verdict.kind, decision.verdict.outage) == ("rejected", False)
    assert decision.request.no_overflow == "it has no running replica"


@pytest.mark.parametrize(
    "how",
    ["a replica is back", "Redis is gone", "Redis is back", "Ray Serve is silent", "never read"],
)
def test_without_an_outage_requests_are_decided_as_usual(
    lost: PoolScheduler, small: PoolScheduler, clock: HandClock, how: str
) -> None:
    scheduler = lost
    if how == "a replica is back":
        lost.board.update(pool(1).values())
    elif how == "Redis is gone":
        clock.now += LEASE_S + 0.1
    elif how == "Redis is back":  # and no process has written to it yet
        clock.now += LEASE_S + 0.1
        lost.board.update([])
        report_outage(lost, clock, 100.0)
    elif how == "Ray Serve is silent":
        is_empty_for(lost, clock, FRESH_S + 1.0)
    else:
        scheduler = PoolScheduler(clock, PoolSettings(SLOS, 2, RULES), small)
        scheduler.told_of_outage = Outage(clock.now, clock.now, 100.0)
    assert scheduler.outage is None
    decision = decide(scheduler, request(clock, overflow="never"))
    assert (decision.verdict.kind, decision.verdict.outage) == ("admitted", False)


def test_a_replica_that_is_replaced_within_its_lease_is_no_outage(
    lost: PoolScheduler, clock: HandClock
) -> None:
    lost.board.update(pool(1).values())
    is_empty_for(lost, clock, LEASE_S - 0.1)
    report_outage(lost, clock, 100.0)
    assert lost.outage is None
    lost.board.update(pool(1).values())
    assert lost.board.empty_for_s == 0.0
    assert lost.outage is None
