"""How long an engine's answers are learned to take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.decode_time import PACE_S, DecodeTime


def decode_time_after(
    steps: int, seconds: float, sequences: int, learned: DecodeTime
) -> DecodeTime:
    for _ in range(steps):
        learned.add_step([seconds] * sequences, sequences)
    return learned


def test_nothing_is_known_before_the_first_answer() -> None:
    assert DecodeTime().mean == 0.0
    assert decode_time_after(10, 0.1, 4, DecodeTime()).mean == 0.0


def test_the_decode_time_of_an_answer_is_its_tokens_times_the_step_time() -> None:
    learned = decode_time_after(100, 0.1, 4, DecodeTime())
    learned.add_answer(101)
    assert learned.mean == pytest.approx(10.0)


def test_an_engine_that_slows_down_is_known_before_an_answer_ends_at_its_new_pace() -> None:
    learned = decode_time_after(100, 0.1, 4, DecodeTime())
    learned.add_answer(17)
    assert learned.mean == pytest.approx(1.6)
    assert decode_time_after(12, 1.0, 32, learned).mean == pytest.approx(16.0, rel=0.1)
    # and one that is quick again
    assert decode_time_after(round(4 * PACE_S / 0.1), 0.1, 32, learned).mean == pytest.approx(
        1.6, rel=0.2
    )


def test_speculation_gives_more_tokens_per_step() -> None:
    learned = DecodeTime()
    for _ in range(10):
        learned.add_step([0.1] * 4, 10)
    learned.add_answer(101)
    assert learned.mean == pytest.approx(4.0)


def test_a_step_without_tokens_does_not_change_the_mean() -> None:
    learned = DecodeTime()
    learned.add_answer(11)
    learned.add_step([], 0)
    learned.add_step([0.5], 0)
    assert learned.mean == 0.0


@given(
    st.lists(st.tuples(st.floats(0.0, 100.0), st.integers(1, 64)), min_size=1),
    st.lists(st.integers(0, 4000), min_size=1),
)
def test_the_mean_decode_time_is_between_the_shortest_and_the_longest_answer(
    steps: list[tuple[float, int]], answers: list[int]
) -> None:
    learned = DecodeTime()
    for seconds, sequences in steps:
        learned.add_step([seconds] * sequences, sequences)
    for tokens in answers:
        learned.add_answer(tokens)
    paces = [seconds for seconds, _ in steps]
    after_first = [max(0, tokens - 1) for tokens in answers]
    assert learned.mean >= min(paces) * min(after_first) * 0.999
    assert learned.mean <= max(paces) * max(after_first) * 1.001
