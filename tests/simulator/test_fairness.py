"""What one tenant's flood costs another, on simulated engines: little beyond a full pool."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from autoscaling.slo import PriorityClass, Slo
from simulator.engines import Hardware
from simulator.fleet import Call
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings

# Two of them compute about ten of these requests a second.
HARDWARE = Hardware(prefill_rate=4000.0, step_s=0.02, step_tokens=500, sequences=32, blocks=4000)
PROMPT, ANSWER = 400, 60
SECONDS = 80.0
# Until a gateway has learned of both, the first requests stand in the engines.
BEGIN_S = 10.0
SEEDS = (1, 2, 3)
OTHER_RATE = 2.0
# With the other's, the pool's capacity, which is the rule of `make bench-fairness`; and several
# times that.
FILLING_RATE, FLOOD_RATE = 8.0, 30.0


@dataclass(frozen=True)
class Fared:
    """How the other tenant's requests fared: seconds, and how many were refused."""

    ttfts: list[float]
    refused: int

    @property
    def p99_s(self) -> float:
        return sorted(self.ttfts)[int(0.99 * len(self.ttfts))]


def asked_by(
    tenant: str, rate: float, seed: int, priority: PriorityClass = "interactive"
) -> list[Request]:
    rng, at, asked = random.Random(f"{tenant}/{seed}"), 0.0, []
    while (at := at + rng.expovariate(rate)) < SECONDS:
        prompt, answer = (int(of * rng.lognormvariate(0.0, 0.4)) + 1 for of in (PROMPT, ANSWER))
        asked.append(Request(at, prompt, answer, priority=priority, tenant=tenant))
    return asked


def others(beside: float, priority: PriorityClass, slo_s: float) -> Fared:
    """The other tenant's, alongside one that sends N a second."""
    calls: list[Call] = []
    for seed in SEEDS:
        asked = asked_by("other", OTHER_RATE, seed) + asked_by("flood", beside, seed, priority)
        asked.sort(key=lambda request: request.at)
        pool = FleetSettings(
            HARDWARE, 20.0, Slo(slo_s), batch_slo=Slo(60.0), batch_queue=64, seed=seed
        )
        calls += run(Trace("two", tuple(asked), SECONDS), pool, "fixed:2").calls
    own = [c for c in calls if c.request.tenant == "other" and c.request.at >= BEGIN_S]
    served = [call.ttft for call in own if call.first_at is not None]
    return Fared(served, len(own) - len(served))


@pytest.mark.parametrize(
    ("priority", "slo_s"), [("interactive", 5.0), ("batch", 5.0), ("interactive", 1e4)]
)
def test_a_flood_costs_another_tenant_at_most_a_fifth_of_its_p99_ttft(
    priority: PriorityClass, slo_s: float
) -> None:
    full, flooded = (others(rate, priority, slo_s) for rate in (FILLING_RATE, FLOOD_RATE))
    assert full.refused == flooded.refused == 0
    assert flooded.p99_s <= 1.2 * full.p99_s
