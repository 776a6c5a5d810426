"""What one replica can do, from what the replicas of a pool report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.capacity import EngineRates
from autoscaling.scaling.rates import rates_of
from tests.router.loads import load


def test_rates_are_the_mean_of_the_replicas() -> None:
    loads = [
        load(prefill_rate=rate, step_s=8 / rate, max_sequences=sequences, kv_capacity_tokens=tokens)
        for rate, sequences, tokens in ((16.0, 64, 2000), (64.0, 32, 1000))
    ]
    assert rates_of(loads) == EngineRates(40.0, 0.3125, None, 48.0, 1500.0)


def test_a_replica_without_measurements_does_not_count() -> None:
    known = load(prefill_rate=1000.0, step_s=0.02, sequence_s=0.002, max_sequences=64)
    unknown = load(prefill_rate=9.0, prefill_learned=False)
    assert rates_of([known, unknown]) == rates_of([known]) == EngineRates(1000.0, 0.02, 0.002, 64)


def test_a_pool_without_replicas_knows_nothing() -> None:
    assert rates_of([]) == EngineRates()


@given(st.integers(1, 5), st.floats(1e-6, 1e6))
def test_identical_replicas_have_the_rates_of_one_replica(count: int, rate: float) -> None:
    found = rates_of(load(prefill_rate=rate, step_s=rate) for _ in range(count))
    assert (found.prefill_rate, found.step_s) == pytest.approx((rate, rate))
    assert found.sequence_s is None
