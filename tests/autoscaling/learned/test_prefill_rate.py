"""What an engine's prefill rate is learned to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.prefill_rate import MEMORY, PrefillRate, queued_tokens


def rate_of(*prompts: tuple[float, float, int]) -> float | None:
    rate = PrefillRate()
    for ended_at, seconds, tokens in prompts:
        rate.add(ended_at, seconds, tokens)
    return rate.mean


def test_nothing_is_known_before_the_first_prompt() -> None:
    assert rate_of() is None
    assert rate_of((1.0, 1.0, 63), (1.0, 0.0, 1000)) is None


def test_consecutive_prompts_are_timed_separately() -> None:
    assert rate_of((1.0, 1.0, 100), (3.0, 2.0, 200), (9.0, 1.0, 100)) == pytest.approx(100.0)


def test_prompts_that_share_steps_share_their_time() -> None:
    assert rate_of((2.0, 2.0, 100), (2.0, 2.0, 300)) == pytest.approx(200.0)
    # in the order in which they finished, which is not that of their first tokens
    assert rate_of((4.0, 3.0, 100), (2.0, 2.0, 300)) == pytest.approx(100.0)


def test_old_measurements_are_forgotten() -> None:
    slow, fast = [(1.0, 1.0, 64)] * 9, [(10.0 + i, 1.0, 640) for i in range(MEMORY)]
    assert rate_of(*slow, *fast) == pytest.approx(640.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 10), st.integers(64, 9999))))
def test_the_rate_is_no_less_than_that_of_prompts_one_at_a_time(
    prompts: list[tuple[float, float, int]],
) -> None:
    rate, latest = rate_of(*prompts), prompts[-MEMORY:]
    if latest:
        assert rate is not None
        alone = sum(tokens for *_, tokens in latest) / sum(seconds for _, seconds, _ in latest)
        assert rate >= alone * 0.999


@pytest.mark.parametrize(
    ("waiting", "first_token_at", "now", "left"),
    [
        ([], 0.0, 9.0, 0),
        ([(0.0, 1000), (0.1, 500)], 0.0, 0.5, 1000),
        # it was begun when the one before had its first token
        ([(0.0, 1000), (0.1, 500)], 0.375, 0.5, 1375),
        # and is not at its end before its own
        ([(0.0, 1000), (0.1, 500)], 0.0, 9.0, 501),
        ([(9.0, 1000)], 0.0, 8.0, 1000),
    ],
)
def test_queued_tokens_are_those_of_waiting_prompts_not_yet_computed(
    waiting: list[tuple[float, int]], first_token_at: float, now: float, left: int
) -> None:
    assert queued_tokens(waiting, first_token_at, now, rate=1000.0) == left
    # the speed is unknown
    assert queued_tokens(waiting, first_token_at, now, rate=None) == sum(n for _, n in waiting)
