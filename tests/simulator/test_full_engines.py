"""What is predicted of an engine that is full, compared with what is observed."""

import random
import statistics

import pytest
from msgspec.structs import replace

from router.choice.cost import predict_ttft
from simulator.engines import Hardware, Job, SimulatedEngine
from tests.router.loads import load

FULL_CACHE = Hardware(blocks=2000, sequences=256)
FULL_BATCH = Hardware(blocks=20_000, sequences=8)


@pytest.mark.parametrize("hardware", [FULL_CACHE, FULL_BATCH], ids=["cache", "batch"])
def test_the_wait_for_a_full_engine_matches_its_prediction(hardware: Hardware) -> None:
    """More comes than the engine ends, so that the last ones wait for a minute."""
    engine, rng, now = SimulatedEngine(hardware), random.Random(1), 0.0
    predicted: list[tuple[float, Job, float]] = []
    for number in range(400):
        now += rng.expovariate(5.5)
        prompt, answer = rng.randint(1000, 5000), rng.randint(50, 150)
        engine.advance(now)
        seen = replace(load(), **engine.load())
        one = Job.hashed(str(number), prompt, answer)
        engine.submit(one, now)
        predicted.append((predict_ttft(seen, prompt), one, now))
    engine.advance(float("inf"))
    waited = [(ttft, one.first_at - at) for ttft, one, at in predicted[200:] if one.first_at]
    assert statistics.fmean(observed for _, observed in waited) > 5.0
    assert statistics.fmean(ttft / observed for ttft, observed in waited) == pytest.approx(1, 0.3)
