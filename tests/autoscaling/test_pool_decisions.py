"""What a pool's scheduler decides: who goes, waits, overflows or is refused, on a clock by hand."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from autoscaling.admission.admission import MAX_RETRY_AFTER_S
from autoscaling.admission.outlook import MAX_DOUBT, Outlook
from autoscaling.admission.overflow import OverflowRules
from autoscaling.admission.pool_scheduler import DOUBT_ERRORS, PoolScheduler
from autoscaling.admission.scheduling_request import (
    Attempt,
    Considered,
    Decision,
    PoolSettings,
    SchedulingRequest,
)
from autoscaling.admission.waiting import Waiter
from autoscaling.slo import PriorityClass, Slo
from router.board.active import Active
from router.board.load import LoadReport, ReplicaLoad, ReplicaQueue
from router.board.recent import Placed
from router.choice.policies import PlacementRequest
from router.index.slots import LEASE_S
from tests.autoscaling.hand_clock import HandClock
from tests.router.loads import any_loads, load

SLOS: dict[PriorityClass, Slo] = {"interactive": Slo(2.0), "batch": Slo(30.0)}
BATCH_QUEUE = 3
QUEUE = 2
RULES = OverflowRules()


def request(tokens: int = 100, at: float = 1000.0, **fields: Any) -> SchedulingRequest:
    return SchedulingRequest(PlacementRequest(tokens), {}, at, **fields)


def queued(*seconds: float) -> list[ReplicaLoad]:
    """Replicas r0, r1, ... with so much prefill to do before anything that comes."""
    return [
        load(f"r{slot}", slot=slot, waiting=min(1, int(s)), queued_prefill_tokens=int(1000 * s))
        for slot, s in enumerate(seconds)
    ]


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def small(clock: HandClock) -> PoolScheduler:
    """The overflow pool: two idle replicas."""
    scheduler = PoolScheduler(clock)
    scheduler.board.update(queued(0, 0))
    return scheduler


@pytest.fixture
def large(clock: HandClock, small: PoolScheduler) -> PoolScheduler:
    scheduler = PoolScheduler(clock, PoolSettings(SLOS, BATCH_QUEUE, RULES), small)
    scheduler.board.update(queued(0, 0))
    return scheduler


def decide(scheduler: PoolScheduler, asked: SchedulingRequest) -> Decision:
    return scheduler.decide(asked, scheduler.consider(asked))


def counters(scheduler: PoolScheduler) -> tuple[int, int, int]:
    demand = scheduler.demand
    return demand.arrived, demand.rejected, demand.overflowed


@pytest.mark.parametrize(
    ("queue_s", "fields", "kind"),
    [
        (1.0, {}, "admitted"),
        (9.0, {}, "overflowed"),
        (9.0, {"overflow": "never"}, "rejected"),
        (9.0, {"no_overflow": "it names an adapter"}, "rejected"),
        (0.0, {"overflow": "only"}, "overflowed"),
        (0.0, {"overflow": "only", "no_overflow": "it names an adapter"}, "rejected"),
        (0.5, {"priority": "batch"}, "admitted"),
        (1.5, {"priority": "batch"}, "queued"),
        (31.0, {"priority": "batch", "overflow": "never"}, "rejected"),
    ],
)
def test_a_request_gets_its_verdict_and_is_counted(
    large: PoolScheduler, queue_s: float, fields: dict[str, Any], kind: str
) -> None:
    large.board.update(queued(queue_s, queue_s))
    decision = decide(large, request(**fields))
    assert decision.verdict.kind == kind
    assert (decision.attempt is not None) == (kind == "admitted")
    assert (decision.waiter is not None) == (kind == "queued")
    # one that overflows is counted when the other pool has read it
    assert counters(large) == (kind != "overflowed", kind == "rejected", 0)


def test_an_admitted_request_counts_before_the_next_is_decided(large: PoolScheduler) -> None:
    kinds = [decide(large, request(1500, overflow="never")).verdict.kind for _ in range(4)]
    # the second on each of the two would wait for 3 s
    assert kinds == ["admitted", "admitted", "rejected", "rejected"]


def test_a_request_for_several_answers_counts_as_several_requests(
    large: PoolScheduler, clock: HandClock
) -> None:
    first = decide(large, request(10, sequences=8)).attempt
    assert first is not None and first.chosen is not None
    attempts = [decide(large, request(10)).attempt for _ in range(2)]
    chosen = {attempt.chosen.replica_id for attempt in attempts if attempt and attempt.chosen}
    assert chosen == {"r0", "r1"} - {first.chosen.replica_id}
    assert large.board.loads()[first.chosen.replica_id].queue.waiting == 8
    # without the board, the gateway's own requests in flight count
    clock.now += LEASE_S + 1
    blind = large.consider(request(10))
    assert blind.ranked[-1].replica_id == first.chosen.replica_id
    for attempt in (first, *attempts):
        assert attempt is not None
        large.ended(attempt, None)
    assert not large.has_work


def test_cached_tokens_count_as_demand_and_not_as_work(large: PoolScheduler) -> None:
    prompt = PlacementRequest(700, tuple(b"%08d" % i for i in range(5)))
    decide(large, SchedulingRequest(prompt, {1: 3}, 1000.0))
    assert large.demand.prompt_tokens == 700
    assert large.demand.uncached_tokens == 700 - 3 * 128


@pytest.mark.parametrize("priority", ["interactive", "batch"])
@pytest.mark.parametrize(("queue_s", "lost"), [(0.5, False), (9.0, True)])
@pytest.mark.parametrize("active", [1, 2])
def test_a_warm_replica_is_needed_if_no_replica_meets_the_interactive_slo(
    large: PoolScheduler, priority: PriorityClass, queue_s: float, lost: bool, active: int
) -> None:
    large.board.update(queued(queue_s, queue_s), Active(active))
    asked = request(priority=priority)
    needed = large.needs_warm(asked, large.consider(asked))
    assert needed == (lost and priority == "interactive" and active == 1)


def test_overflow_goes_to_the_soonest_replica_and_counts_in_both_pools(
    large: PoolScheduler, small: PoolScheduler
) -> None:
    large.board.update(queued(9.0))
    small.board.update(queued(1.0, 0.5, 1.5))
    asked = decide(large, request(tokens=100))
    # the policy there would have r0
    final = small.stand_in(request(tokens=120, policy="round_robin"), large, asked)
    assert final.attempt is not None
    assert final.attempt.chosen is not None
    assert final.attempt.chosen.replica_id == "r1"
    assert (counters(large), counters(small)) == ((1, 0, 1), (1, 0, 0))
    assert (large.demand.prompt_tokens, small.demand.prompt_tokens) == (100, 120)
    assert small.board.loads()["r1"].queue.waiting == 1


@pytest.mark.parametrize(
    ("unfit", "filled_s", "retry_after_s"),
    [("it is too long", 0.0, 8), (None, 5.0, 4), (None, 50.0, 8)],
)
def test_a_request_that_the_overflow_pool_refuses_is_rejected_and_counted(
    large: PoolScheduler,
    small: PoolScheduler,
    unfit: str | None,
    filled_s: float,
    retry_after_s: int,
) -> None:
    large.board.update(queued(9.0))
    asked = decide(large, request())
    small.board.update(queued(filled_s))
    final = small.stand_in(request(), large, asked, unfit)
    assert (final.verdict.kind, final.attempt) == ("rejected", None)
    assert final.verdict.retry_after_s == retry_after_s
    assert unfit is None or final.verdict.reason == unfit
    assert (counters(large), counters(small)) == ((1, 1, 0), (0, 0, 0))


def test_queued_requests_start_in_order_once_a_replica_has_room(
    large: PoolScheduler, clock: HandClock
) -> None:
    large.board.update(queued(1.5))
    waiters = [decide(large, request(400, priority="batch")).waiter for _ in range(2)]
    assert large.refresh_demand().waiting == 2
    assert large.demand.queued_tokens == 800
    assert large.next_turn() is None
    large.board.update(queued(0.5))
    turn = large.next_turn()
    assert turn is not None
    assert turn[0] is waiters[0]
    # the first counts against the replica now: half of the interactive SLO is taken
    assert large.next_turn() is None
    assert large.refresh_demand().waiting == 1
    clock.now += 31.0
    large.board.update(queued(1.5))  # overdue: it goes when an interactive one would
    turn = large.next_turn()
    assert turn is not None
    assert turn[0] is waiters[1]


def test_a_request_that_left_the_queue_never_starts(large: PoolScheduler) -> None:
    large.board.update(queued(1.5))
    waiter = decide(large, request(priority="batch")).waiter
    assert waiter is not None
    large.left(waiter)
    large.board.update(queued(0.0))
    assert large.next_turn() is None
    assert large.refresh_demand().waiting == 0


@pytest.mark.parametrize("how", ["answered", "ended"])
def test_without_a_replica_a_request_waits_and_counts_as_demand(clock: HandClock, how: str) -> None:
    alone = PoolScheduler(clock, PoolSettings(SLOS))
    attempt = decide(alone, request()).attempt
    assert attempt is not None
    assert attempt.chosen is None
    assert alone.refresh_demand().waiting == 1
    if how == "answered":
        alone.answered(attempt, "r0", None)
    else:
        alone.ended(attempt, "r0")
    assert alone.refresh_demand().waiting == 0


requests = st.builds(
    SchedulingRequest,
    st.builds(
        PlacementRequest,
        st.integers(1, 10**5),
        st.lists(st.sampled_from([b"%08d" % i for i in range(4)]), max_size=4).map(tuple),
    ),
    st.none() | st.dictionaries(st.integers(0, 9), st.integers(0, 4), max_size=4),
    arrived=st.just(0.0),
    tenant=st.sampled_from("ab"),
    priority=st.sampled_from(["interactive", "batch"]),
    policy=st.sampled_from([None, "random", "least_loaded"]),
    overflow=st.sampled_from(["allow", "allow", "never", "only"]),
    no_overflow=st.sampled_from([None, None, None, "it names an adapter"]),
)
queues = st.lists(st.sampled_from([0.0, 0.5, 1.5, 9.0, 40.0]), max_size=3)
boards = any_loads | queues.map(lambda seconds: {of.replica_id: of for of in queued(*seconds)})
numbers = st.integers(0, 10**6)
reports = st.builds(LoadReport, numbers, st.builds(ReplicaQueue, numbers, numbers, numbers))
# of those that there are
anyone = st.integers(0, 99)


class AnyTraffic(RuleBasedStateMachine):
    """A pool, the one that may stand in for it, and all requests and events that are possible."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()
        # what a rule does must not differ from one run to the next
        rng = random.Random(1)
        self.small = PoolScheduler(self.clock, rng=rng)
        settings = PoolSettings(
            SLOS, BATCH_QUEUE, RULES, shadow_policy="least_loaded", interactive_queue=QUEUE
        )
        self.large = PoolScheduler(self.clock, settings, self.small, rng)
        self.announced: list[Placed] = []
        self.large.announce = self.small.announce = self.announced.append
        self.told: Counter[str] = Counter()
        self.overflowing: list[Decision] = []
        self.waiting: list[Waiter[SchedulingRequest]] = []
        self.going: list[tuple[PoolScheduler, Attempt]] = []
        self.placed = self.evicted = 0

    @rule(loads=boards, active=st.none() | st.builds(Active, st.integers(0, 4)))
    def the_board_is_read_and_turns_come(
        self, loads: Mapping[str, ReplicaLoad], active: Active | None
    ) -> None:
        self.large.board.update(loads.values(), active)
        while (turn := self.large.next_turn()) is not None:
            waiter, attempt = turn
            self.waiting.remove(waiter)
            self.goes(self.large, attempt)

    @rule(loads=boards)
    def the_overflow_pool_s_board_is_read(self, loads: Mapping[str, ReplicaLoad]) -> None:
        self.small.board.update(loads.values())

    @rule(seconds=st.sampled_from([0.001, 1.0, LEASE_S, 31.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(asked=requests, late_s=st.sampled_from([0.0, 0.5, 5.0]))
    def a_request_comes(self, asked: SchedulingRequest, late_s: float) -> None:
        asked = replace(asked, arrived=self.clock.now - late_s)
        considered = self.large.consider(asked)
        lost = self.large.needs_warm(asked, considered)
        excess_s = self.excess_s(asked, considered)
        decision = self.large.decide(asked, considered)
        kind = decision.verdict.kind
        assert (decision.waiter is not None) == (kind == "queued")
        if kind == "overflowed":
            assert asked.overflow != "never"
            assert asked.no_overflow is None
            assert decision.attempt is None
            self.overflowing.append(decision)
            return
        self.follow(self.large, decision, excess_s)
        assert kind == "rejected" or not lost
        if decision.waiter is not None:
            self.waiting.append(decision.waiter)
        if decision.evicted is not None:
            self.waiting.remove(decision.evicted)
            self.evicted += 1

    @precondition(lambda self: self.overflowing)
    @rule(which=anyone, unfit=st.sampled_from([None, "it is too long"]))
    def the_overflow_pool_has_read_one(self, which: int, unfit: str | None) -> None:
        asked = self.overflowing.pop(which % len(self.overflowing))
        excess_s = self.excess_s(asked.request, asked.considered)
        final = self.small.stand_in(asked.request, self.large, asked, unfit)
        assert unfit is None or final.verdict.reason == unfit
        self.follow(self.small, final, excess_s)

    @precondition(lambda self: self.waiting)
    @rule(which=anyone)
    def one_that_waits_leaves(self, which: int) -> None:
        self.large.left(self.waiting.pop(which % len(self.waiting)))

    @precondition(lambda self: self.going)
    @rule(which=anyone, ttft_s=st.floats(0, 1e5), report=st.none() | reports)
    def a_first_token_comes(self, which: int, ttft_s: float, report: LoadReport | None) -> None:
        pool, attempt = self.going[which % len(self.going)]
        pool.answered(attempt, "r0", report)
        pool.observed(attempt, ttft_s)

    @precondition(lambda self: self.going)
    @rule(which=anyone, served_by=st.sampled_from([None, "r0", "r1"]))
    def one_ends(self, which: int, served_by: str | None) -> None:
        pool, attempt = self.going.pop(which % len(self.going))
        pool.ended(attempt, served_by)

    def excess_s(self, asked: SchedulingRequest, considered: Considered) -> float:
        """By how much the backlog of the pool that it is for is too long."""
        ranked: Sequence[Outlook] = considered.ranked
        if asked.overflow == "only" or not ranked:
            ranked = self.small.outlook(asked.prompt.prompt_tokens)
        due_s = min((c.predicted_ttft_s for c in ranked), default=0.0)
        if ranked:
            admission = self.large.admission
            due_s += (admission.queue.work_s + admission.interactive.work_s) / len(ranked)
        doubt = min(MAX_DOUBT, DOUBT_ERRORS * (self.large.correction.expected_error))
        return due_s - SLOS[asked.priority].ttft_s / (1.0 + doubt)

    def follow(self, pool: PoolScheduler, decision: Decision, excess_s: float) -> None:
        kind, attempt = decision.verdict.kind, decision.attempt
        self.told[kind] += 1
        assert (attempt is not None) == (kind in ("admitted", "overflowed"))
        if attempt is not None:
            self.goes(pool, attempt)
        if kind == "rejected":
            longest = max(1, min(MAX_RETRY_AFTER_S, math.ceil(excess_s)))
            assert 1 <= decision.verdict.retry_after_s <= longest

    def goes(self, pool: PoolScheduler, attempt: Attempt) -> None:
        self.going.append((pool, attempt))
        if attempt.chosen is not None:
            self.placed += 1
            assert self.announced[-1].ticket == attempt.ticket

    @invariant()
    def the_counters_add_up(self) -> None:
        demand, told = self.large.demand, self.told
        assert demand.arrived == told.total()
        refused = told["rejected"] + self.evicted
        assert (demand.rejected, demand.overflowed) == (refused, told["overflowed"])
        assert self.small.demand.arrived == told["overflowed"]
        assert 0 <= demand.uncached_tokens <= demand.prompt_tokens

    @invariant()
    def who_waits_is_demand(self) -> None:
        demand = self.large.refresh_demand()
        assert demand.waiting - self.large.unassigned == len(self.waiting) <= BATCH_QUEUE + QUEUE
        assert demand.queued_tokens == sum(waiter.tokens for waiter in self.waiting)

    @invariant()
    def each_placement_is_announced_once(self) -> None:
        assert len({placed.ticket for placed in self.announced}) == self.placed
        assert len(self.announced) == self.placed


TestAnyTraffic = AnyTraffic.TestCase
