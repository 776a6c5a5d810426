"""How right predictions are where nothing but the engines' own time is to be predicted."""

from __future__ import annotations

import random
import statistics

import pytest

from autoscaling.slo import Slo
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings

HARDWARE = Hardware(
    prefill_rate=2000.0, step_s=0.02, sequence_s=0.001, step_tokens=512, sequences=16, blocks=4000
)
SECONDS, LEARNING = 200.0, 20


@pytest.mark.parametrize(("rate", "mean", "p90"), [(2.5, 0.03, 0.05), (5.0, 0.12, 0.30)])
def test_predicted_times_to_first_token_are_right_in_simulation(
    rate: float, mean: float, p90: float
) -> None:
    """At an eighth and at half of what four engines can do; what comes later cannot be known."""
    rng, at, asked = random.Random(1), 0.0, []
    while (at := at + rng.expovariate(rate)) < SECONDS:
        asked.append(Request(at, rng.randint(500, 1200), 8))
    pool = FleetSettings(HARDWARE, 20.0, Slo(1e4))
    calls = run(Trace("steady", tuple(asked), SECONDS), pool, "fixed:4").calls[LEARNING:]
    errors = []
    for call in calls:
        assert call.attempt is not None and call.attempt.chosen is not None
        assert call.first_at is not None and call.placed_at is not None
        took = call.first_at - call.placed_at
        errors.append(abs(call.attempt.chosen.predicted_ttft_s - took) / took)
    errors.sort()
    assert statistics.fmean(errors) <= mean
    assert errors[int(0.9 * len(errors))] <= p90
