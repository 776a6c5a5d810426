"""What the simulation is told of engines that share a machine."""

from __future__ import annotations

import pytest

from benchmarks.validation.run import MeasuredEngines, mean_of
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware


def profile(prefill_rate: float, step_s: float) -> EngineProfile:
    return EngineProfile(Hardware(prefill_rate=prefill_rate, step_s=step_s), 20.0, {})


def test_times_are_between_those_of_one_engine_and_of_all() -> None:
    engines = MeasuredEngines(alone=profile(800.0, 0.04), together=profile(400.0, 0.08))
    assert engines.at(0.0).hardware == engines.alone.hardware
    assert engines.at(1.0).hardware == engines.at(2.0).hardware == engines.together.hardware
    half = engines.at(0.5).hardware
    assert 1.0 / half.prefill_rate == pytest.approx((1 / 800 + 1 / 400) / 2)
    assert half.step_s == pytest.approx(0.06)


def test_engines_are_told_in_the_mean() -> None:
    found = mean_of([profile(800.0, 0.04), profile(400.0, 0.08)]).hardware
    assert found.prefill_rate == pytest.approx(600.0)
    assert found.step_s == pytest.approx(0.06)
