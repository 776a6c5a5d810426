"""What is coming, from counts: levels, trends, cliffs and noise."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.forecast import HISTORY_S, DemandSample, Forecast, History


def sample(at: float, arrived: float, tokens: float = 1000.0, **told: float) -> DemandSample:
    return DemandSample(at, arrived, 0.0, 4 * at, arrived * tokens, arrived * 100.0, **told)


def poisson(rate: Callable[[float], float], seconds: int, seed: int) -> Iterator[History]:
    """The history after each second of Poisson arrivals at this rate."""
    rng, history, arrived = random.Random(seed), History(), 0
    for second in range(seconds):
        history = history.heard(sample(float(second), float(arrived)))
        yield history
        at = 0.0
        while (at := at + rng.expovariate(rate(second))) < 1.0:
            arrived += 1


def history_after(rate: Callable[[float], float], seconds: int, seed: int) -> History:
    *_, last = poisson(rate, seconds, seed)
    return last


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.5, 4.0, 40.0])
def test_a_steady_rate_is_found_and_noise_is_no_trend(rate: float, seed: int) -> None:
    line = history_after(lambda _: rate, 400, seed).line
    assert line.rate == pytest.approx(rate, rel=0.5 / rate**0.5)
    assert line.at(120.0) == pytest.approx(rate, rel=0.6 / rate**0.5)


@pytest.mark.parametrize("pause_s", [0.25, 1.0, 4.0])
def test_noise_is_learned_whatever_the_time_between_samples(pause_s: float) -> None:
    """Arrivals of a constant rate have the dispersion 1, read four times a second or every 4 s."""
    rng, history, arrived, at = random.Random(1), History(), 0, 0.0
    while at < 600.0:
        history = history.heard(sample(at, float(arrived)))
        lasted = pause_s * rng.uniform(0.5, 1.5)
        gap = rng.expovariate(20.0)
        while gap < lasted:
            arrived += 1
            gap += rng.expovariate(20.0)
        at += lasted
    assert history.dispersion < 1.5
    # all of one size: tokens are as dispersed as requests
    assert history.token_dispersion < 1.5


@pytest.mark.parametrize("seed", range(3))
def test_a_ramp_is_extrapolated(seed: int) -> None:
    line = history_after(lambda at: 2.0 + at / 100.0, 500, seed).line
    assert line.at(120.0) == pytest.approx(2.0 + 620 / 100.0, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_follows_a_sudden_increase_within_seconds(seed: int) -> None:
    history = history_after(lambda at: 1.0 if at < 300 else 8.0, 306, seed)
    assert history.line.rate > 4.0


@pytest.mark.parametrize("seed", range(5))
def test_the_rate_follows_the_end_of_a_burst(seed: int) -> None:
    history = history_after(lambda at: 10.0 if at < 300 else 1.0, 320, seed)
    assert history.line.rate < 3.0


@pytest.mark.parametrize("seed", range(5))
def test_on_steady_traffic_the_rate_stays_where_it_is(seed: int) -> None:
    histories = list(poisson(lambda _: 5.0, 1800, seed))[120:]
    off = [abs(history.line.rate - 5.0) > 1.5 for history in histories]
    assert sum(off) <= 0.02 * len(off)


def test_batched_arrivals_are_not_taken_for_a_sudden_increase() -> None:
    history, cliffs = History(), 0
    for second in range(600):
        # ten at once every three seconds
        history = history.heard(sample(float(second), 10.0 * (second // 3)))
        cliffs += second > 100 and history.line.rate > 6.0
    assert history.dispersion > 3.0
    assert cliffs == 0


def test_a_trend_is_extrapolated_no_further_than_it_was_observed() -> None:
    line = Forecast(rate=2.0, slope=0.1, seen_s=50.0)
    assert line.at(50.0) == line.at(500.0) == pytest.approx(7.0)


def test_a_falling_rate_ends_at_zero() -> None:
    assert Forecast(rate=2.0, slope=-0.1, seen_s=300.0).at(100.0) == 0.0


def test_token_counts_are_averaged_over_requests() -> None:
    history = History().heard(sample(0.0, 0.0)).heard(sample(1.0, 10.0, progressed=3.0))
    assert history.per_request("uncached_tokens") == 1000.0
    assert history.per_request("prompt_tokens") is None
    assert history.per_request("output_tokens") is None
    history = history.heard(sample(2.0, 20.0, progressed=8.0))
    assert history.per_request("output_tokens") == 1000.0 / 5.0


def test_a_counter_that_decreased_continues_from_its_new_value() -> None:
    history = History()
    for second in range(100):
        arrived = 500.0 + 5.0 * second if second < 50 else 5.0 * (second - 50)
        history = history.heard(sample(float(second), arrived))
    assert history.line.rate == pytest.approx(5.0, rel=0.1)
    assert history.growth("arrived", 30.0) == pytest.approx(150.0, abs=10)


def test_the_history_restarts_after_a_long_silence() -> None:
    history = history_after(lambda _: 5.0, 100, 1).heard(sample(100.0 + 2 * HISTORY_S, 1e6))
    assert len(history.samples) == 1


@given(
    st.lists(st.tuples(st.floats(-1e11, 1e11), st.floats(0, 1e15), st.floats(0, 1e15)), max_size=30)
)
def test_the_line_is_finite_for_any_counts(told: list[tuple[float, float, float]]) -> None:
    history = History()
    for at, arrived, tokens in told:
        history = history.heard(DemandSample(at, arrived, 0.0, 0.0, tokens, tokens))
        line = history.line
        assert 0.0 <= line.at(0.0) < float("inf")
        assert 0.0 <= line.at(3600.0, 2.0) < float("inf")
        json.dumps(vars(history), allow_nan=False)


@given(st.lists(st.floats(0.2, 60.0), max_size=300))
def test_a_history_keeps_few_samples_with_exact_first_and_last_values(gaps: list[float]) -> None:
    history, at = History(), 0.0
    for gap in gaps:
        at += gap
        history = history.heard(sample(at, at))
    assert len(history.samples) <= 80
    assert not gaps or history.samples[-1].at == at


def test_a_rounding_error_of_a_counter_is_not_growth() -> None:
    """Of 1e15 tokens that fell, a rest of -0.05 was left, which has no square root."""
    history = replace(
        History(), samples=(sample(0.0, 1.0, 1e15), sample(1.0, 2.0, (1e15 - 0.5) / 2.0))
    )
    assert history.growth("uncached_tokens", 10.0) == 0.0
    assert history.per_request("uncached_tokens") == 0.0
