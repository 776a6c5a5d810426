"""How fast an engine loads from a tier, as it learns from its loads."""

from __future__ import annotations

import pytest

from autoscaling.learned.load_rate import FORGOTTEN_S, LoadRate


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_unknown_before_the_first_load() -> None:
    assert LoadRate().rate == 0.0


def test_the_seconds_of_several_steps_count_for_the_tokens_after_them() -> None:
    rate = LoadRate()
    rate.spent({("a",): 0.1})
    rate.spent({("a",): 0.2, ("b",): 0.2})
    rate.loaded(1000)
    assert rate.rate == pytest.approx(2000)


def test_a_slow_rate_is_forgotten_after_some_time_without_a_load() -> None:
    clock = Clock()
    rate = LoadRate(clock)
    rate.spent({(): 100.0})
    rate.loaded(1000)
    assert rate.rate == pytest.approx(10)
    clock.now = FORGOTTEN_S + 1
    assert rate.rate == 0.0
    rate.spent({(): 0.1})
    rate.loaded(1000)
    assert rate.rate == pytest.approx(10_000)
