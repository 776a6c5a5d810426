"""A simulated fleet: what its replicas cost, and who serves."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from simulator.engines import Hardware
from simulator.fleet import Call, SimulatedFleet
from simulator.traces import Request

# A prompt of 10 tokens takes 1.25 s with its step, every further token 0.5 s.
HARDWARE = Hardware(prefill_rate=10.0, step_s=0.25, sequence_s=0.25, step_tokens=100)
STARTUP_S = 60.0


def call(number: int = 0, at: float = 0.0, answer: int = 1) -> Call:
    return Call(number, Request(at, 10, answer))


def test_a_replica_is_paid_for_from_when_it_was_asked_for() -> None:
    fleet = SimulatedFleet(HARDWARE, STARTUP_S, 1)
    fleet.scale_to(3, 100.0)
    assert (len(fleet.serving), len(fleet.starting), fleet.paid) == (1, 2, 3)
    assert fleet.replica_seconds(110.0) == 110.0 + 2 * 10.0
    fleet.advance(159.9)
    assert len(fleet.serving) == 1
    fleet.advance(160.0)
    assert (len(fleet.serving), len(fleet.starting)) == (3, 0)
    assert fleet.replica_seconds(200.0) == 200.0 + 2 * 100.0


def test_a_replica_that_is_cancelled_while_starting_is_paid_for_until_then() -> None:
    fleet = SimulatedFleet(HARDWARE, STARTUP_S, 1)
    fleet.scale_to(3, 100.0)
    fleet.scale_to(1, 130.0)
    assert (fleet.paid, fleet.next_ready_at) == (1, None)
    assert fleet.replica_seconds(200.0) == 200.0 + 2 * 30.0


def test_starting_replicas_are_removed_before_serving_ones_and_newest_first() -> None:
    fleet = SimulatedFleet(HARDWARE, STARTUP_S, 3)
    fleet.scale_to(4, 10.0)
    fleet.scale_to(2, 20.0)
    assert [replica.slot for replica in fleet.serving] == [0, 1]
    assert fleet.starting == fleet.draining == []


def test_a_draining_replica_finishes_its_requests_and_is_paid_for_until_then() -> None:
    fleet = SimulatedFleet(HARDWARE, STARTUP_S, 2)
    last = call(answer=5)
    fleet.serving[1].submit(last, 0, 0.0)
    fleet.scale_to(1, 1.0)
    assert (fleet.paid, fleet.requests) == (2, 1)
    progress = fleet.advance(10.0)
    # its prompt, then four further tokens
    assert progress.finished == [last]
    assert last.ended_at == 1.25 + 4 * 0.5
    assert fleet.paid == 1
    assert fleet.replica_seconds(10.0) == 10.0 + 3.25
    assert fleet.generated == 5


def test_a_call_has_the_times_of_its_first_and_last_token() -> None:
    fleet = SimulatedFleet(HARDWARE, STARTUP_S, 1)
    asked = call(at=2.0, answer=5)
    fleet.advance(2.0)
    fleet.serving[0].submit(asked, 0, 2.0)
    progress = fleet.advance(math.inf)
    assert progress.first_tokens == progress.finished == [asked]
    assert (asked.ttft, asked.tpot) == (1.25, 0.5)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 50)), max_size=12))
def test_the_cost_is_the_sum_over_time_of_the_replicas_that_have_a_gpu(
    steps: list[tuple[int, int]],
) -> None:
    fleet = SimulatedFleet(HARDWARE, 30.0, 2)
    now = expected = 0.0
    for target, seconds in steps:
        fleet.scale_to(target, now)
        assert len(fleet.serving) + len(fleet.starting) == target
        # nothing runs here, so nothing drains
        expected += fleet.paid * seconds
        now += seconds
        fleet.advance(now)
    assert fleet.replica_seconds(now) == expected
