"""What is learned of decode steps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.step_time import MEMORY_STEPS, StepTime


def steps(time: StepTime, sequences: int, seconds: float, count: int = 50) -> None:
    for _ in range(count):
        time.add([seconds] * sequences, sequences)


def test_before_any_step_nothing_is_known() -> None:
    assert StepTime().line() == (0.0, 0.0)


def test_the_line_is_found_through_noise() -> None:
    time, rng = StepTime(), random.Random(3)
    for _ in range(4000):
        sequences = rng.choice((1, 2, 4, 9, 30, 64))
        seconds = (0.02 + 0.001 * sequences) * rng.uniform(0.8, 1.2)
        time.add([seconds] * sequences, sequences)
    assert time.line() == pytest.approx((0.02, 0.001), rel=0.1)


def test_a_step_that_also_computes_prompts_is_not_learned() -> None:
    time = StepTime()
    steps(time, 4, 0.02)
    for _ in range(50):
        time.add([0.9] * 4, served=5)
    time.add([], served=1)
    assert time.line() == pytest.approx((0.02, 0.0))


def test_a_preempted_request_does_not_count_as_a_long_step() -> None:
    time = StepTime()
    for _ in range(50):
        time.add([0.02, 7.0, 0.02], served=3)
    assert time.line() == pytest.approx((0.02, 0.0))


def test_a_few_steps_do_not_change_the_line_yet() -> None:
    time = StepTime()
    steps(time, 1, 0.02)
    steps(time, 64, 5.0, count=2)
    assert time.line() == pytest.approx((0.02, 0.0))


def test_a_long_time_at_one_load_does_not_forget_the_slope() -> None:
    time = StepTime()
    steps(time, 1, 0.02 + 0.001)
    steps(time, 32, 0.02 + 0.032, count=10_000)
    assert time.line() == pytest.approx((0.02, 0.001))


def test_an_engine_that_became_slower_is_known_as_slower() -> None:
    time = StepTime()
    for slowness in (1, 3):
        steps(time, 1, slowness * 0.02, count=int(5 * MEMORY_STEPS))
        steps(time, 32, slowness * 0.05, count=int(5 * MEMORY_STEPS))
    step_s, sequence_s = time.line()
    assert step_s + 32 * sequence_s == pytest.approx(3 * 0.05, rel=0.02)


@given(
    st.lists(st.tuples(st.integers(1, 300), st.floats(1e-5, 10.0), st.integers(1, 20)), max_size=12)
)
def test_the_step_line_is_never_negative_and_stays_within_the_observed_steps(
    seen: list[tuple[int, float, int]],
) -> None:
    time = StepTime()
    for sequences, seconds, count in seen:
        steps(time, sequences, seconds, count)
    step_s, sequence_s = time.line()
    assert step_s >= 0 and sequence_s >= 0
    if step_s or sequence_s:
        slowest = max(seconds for _, seconds, _ in seen)
        assert step_s + sequence_s <= slowest * (1 + 1e-9)
