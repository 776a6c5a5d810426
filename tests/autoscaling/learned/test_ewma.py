"""An exponentially weighted mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.ewma import Ewma


def test_the_mean_is_zero_before_the_first_sample() -> None:
    assert Ewma(20.0).mean == 0.0


def test_late_samples_outweigh_early_ones() -> None:
    ewma = Ewma(20.0)
    for _ in range(100):
        ewma.add(1.0, 1.0)
    assert ewma.mean == pytest.approx(1.0)
    for _ in range(100):
        ewma.add(3.0, 1.0)
    assert 2.9 < ewma.mean < 3.0


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 100)), max_size=20))
def test_adding_a_sample_many_times_equals_adding_it_repeatedly(
    samples: list[tuple[float, int]],
) -> None:
    at_once, in_turn = Ewma(20.0), Ewma(20.0)
    for amount, times in samples:
        at_once.add_times(amount, times)
        for _ in range(times):
            in_turn.add(amount, 1.0)
    assert at_once.mean == pytest.approx(in_turn.mean, rel=1e-6, abs=1e-6)
