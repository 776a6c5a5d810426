"""Arrivals have the given rate, at every moment."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.arrivals import ramp, steady

RATES = st.floats(0.0, 100.0)


def test_steady_arrivals_have_the_requested_count() -> None:
    times = steady(40.0, 10.0)(random.Random(1))
    assert len(times) == 40
    assert times == sorted(times)


def test_the_number_of_arrivals_of_a_ramp_matches_its_mean_rate() -> None:
    assert len(ramp(1.0, 5.0, 60.0)(random.Random(1))) == 180


@given(RATES, RATES.filter(lambda rate: rate > 0.01), st.floats(1.0, 1000.0), st.integers())
def test_arrivals_of_a_ramp_are_sorted_and_within_its_duration(
    first: float, last: float, seconds: float, seed: int
) -> None:
    times = ramp(first, last, min(seconds, 1000.0 / (first + last)))(random.Random(seed))
    assert times == sorted(times)
    assert times[0] >= 0.0
    assert times[-1] <= seconds * (1 + 1e-9)


@pytest.mark.parametrize(("first", "last"), [(0.0, 8.0), (8.0, 0.5), (4.0, 4.0)])
def test_the_rate_of_a_ramp_changes_linearly(first: float, last: float) -> None:
    seconds = 10_000.0
    times = ramp(first, last, seconds)(random.Random(1))
    for begin in (0.0, 0.25, 0.5, 0.75):
        there = sum(begin <= at / seconds < begin + 0.25 for at in times)
        mean_rate = first + (last - first) * (begin + 0.125)
        # some 5,000 of a Poisson process, the same each time
        assert there == pytest.approx(mean_rate * seconds / 4, rel=0.06)
