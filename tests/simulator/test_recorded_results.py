"""Results of simulations without KV tiers, as they were before the simulator had tiers."""

import pytest

from autoscaling.slo import Slo
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.types import FleetSettings
from tests.simulator.conversations import conversations

# Its cache holds about four conversations.
HARDWARE = Hardware(prefill_rate=2000.0, step_s=0.01, step_tokens=512, sequences=16, blocks=300)
POOL = FleetSettings(HARDWARE, 20.0, Slo(2.0), min_replicas=1, max_replicas=4)


@pytest.mark.parametrize(
    ("policy", "seed", "served", "ttft_s", "ended_s", "replica_s"),
    [
        ("antefix", 1, 308, 187.625264, 17418.347741, 304.0),
        ("antefix", 2, 314, 180.537316, 17301.033951, 293.0),
        ("fixed:2", 1, 309, 165.377578, 17245.567099, 240.0),
        ("fixed:2", 2, 319, 167.47396, 17445.404278, 254.0),
        ("serve-default", 1, 320, 1040.610667, 19203.087887, 301.0),
        ("hpa-waiting:1+antefix-routing", 2, 296, 170.242792, 16220.896089, 291.0),
    ],
)
def test_a_fleet_without_tiers_gives_the_recorded_result(
    policy: str, seed: int, served: int, ttft_s: float, ended_s: float, replica_s: float
) -> None:
    """The sums of TTFTs and of ends are those of served requests."""
    result = run(conversations(seed, people=40, turns=8, seconds=120.0), POOL, policy)
    ended = [(call.ttft, call.ended_at or 0.0) for call in result.calls if call.first_at]
    assert len(ended) == served
    assert sum(ttft for ttft, _ in ended) == pytest.approx(ttft_s, abs=1e-5)
    assert sum(end for _, end in ended) == pytest.approx(ended_s, abs=1e-5)
    assert result.replica_seconds == pytest.approx(replica_s, abs=1e-5)
