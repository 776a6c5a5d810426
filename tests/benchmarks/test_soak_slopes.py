"""A leak of known slope is found, and what is none is not called one."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak.slopes import FEWEST_CYCLES, HOUR_S, Samples, slope_of

CYCLE_S, PERIOD_S, CYCLES = 30.0, 5.0, 14
PER_CYCLE = int(CYCLE_S / PERIOD_S)


def sampled(values: list[float]) -> Samples:
    return [(number * PERIOD_S, value) for number, value in enumerate(values)]


def correlated(chance: random.Random, by: float) -> list[float]:
    """A stationary first-order process, whose neighbors are this similar; standard
    deviation 1."""
    values = [chance.gauss(0, 1)]
    while len(values) < CYCLES * PER_CYCLE:
        values.append(by * values[-1] + chance.gauss(0, (1 - by * by) ** 0.5))
    return values


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_of_known_slope_is_found_in_noise(seed: int) -> None:
    noise = correlated(random.Random(seed), 0.5)
    per_sample = 0.1
    known = per_sample / PERIOD_S * HOUR_S
    found = slope_of(sampled([x + per_sample * i for i, x in enumerate(noise)]), CYCLE_S)
    assert found is not None
    assert found.exceeds(0.0)
    assert found.per_hour == pytest.approx(known, rel=0.5)
    assert found.low < found.per_hour < found.high


@pytest.mark.parametrize("by", [0.0, 0.5, 0.8])
def test_noise_is_called_a_leak_as_rarely_as_the_confidence_interval_implies(by: float) -> None:
    """2.5 % of the time; some more where few cycles show little of how alike they are."""
    chance = random.Random(7)
    leaks = 0
    for _ in range(400):
        found = slope_of(sampled(correlated(chance, by)), CYCLE_S)
        assert found is not None
        leaks += found.exceeds(0.0)
    assert leaks <= 0.05 * 400


def test_a_step_at_the_start_is_not_a_leak() -> None:
    chance = random.Random(3)
    values = [chance.gauss(100, 1) for _ in range(CYCLES * PER_CYCLE)]
    early = 2 * PER_CYCLE
    found = slope_of(sampled([x - 50 if i < early else x for i, x in enumerate(values)]), CYCLE_S)
    assert found is not None
    assert not found.exceeds(0.0)


def test_a_figure_that_rises_and_falls_with_each_cycle_is_not_a_leak() -> None:
    found = slope_of(sampled([float(i % PER_CYCLE) for i in range(CYCLES * PER_CYCLE)]), CYCLE_S)
    assert found is not None
    assert (found.per_hour, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_count_that_grows_by_one_each_cycle_is_a_leak_of_exactly_that() -> None:
    found = slope_of(sampled([float(i // PER_CYCLE) for i in range(CYCLES * PER_CYCLE)]), CYCLE_S)
    assert found is not None
    assert found.per_hour == pytest.approx(HOUR_S / CYCLE_S)
    assert found.low == pytest.approx(found.high)
    assert found.exceeds(100.0)
    assert not found.exceeds(120.0)


def test_too_few_cycles_give_no_slope() -> None:
    values = [float(i) for i in range((FEWEST_CYCLES - 1) * PER_CYCLE)]
    assert slope_of(sampled(values), CYCLE_S) is None
