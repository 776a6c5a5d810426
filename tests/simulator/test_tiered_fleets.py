"""Fleets whose replicas have tiers, behind the scheduler of production."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from autoscaling.slo import Slo
from router.choice.policies import Candidate
from simulator.cache.kv_tiers import TierSettings
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Request, Trace
from simulator.types import FleetSettings, Result
from tests.simulator.conversations import BLOCK_TOKENS, conversations

# Its cache holds about four conversations.
HARDWARE = Hardware(prefill_rate=2000.0, step_s=0.01, step_tokens=512, sequences=16, blocks=300)
POOL = FleetSettings(HARDWARE, 20.0, Slo(10.0), max_replicas=4)
HOST = TierSettings(host_tokens=100_000)
RETURNING = conversations(1, people=40, turns=8, seconds=160.0)


def way(chosen: Candidate) -> str:
    if chosen.disk_load_s:
        return "disk"
    if chosen.host_load_s:
        return "host"
    return "compute" if chosen.refuses_host or chosen.refuses_disk else "cache"


def chosen_of(result: Result) -> list[Candidate]:
    attempts = [call.attempt for call in result.calls if call.attempt is not None]
    return [attempt.chosen for attempt in attempts if attempt.chosen is not None]


def ways(result: Result) -> Counter[str]:
    return Counter(map(way, chosen_of(result)))


def mean_ttft(result: Result) -> float:
    return fmean(call.ttft for call in result.calls)


@pytest.mark.parametrize("policy", ["fixed:2", "antefix"])
def test_conversations_that_return_after_eviction_are_loaded(policy: str) -> None:
    without, tiered = (
        run(RETURNING, POOL, policy),
        run(RETURNING, replace(POOL, tiers=HOST), policy),
    )
    assert ways(without).keys() == {"cache"}
    assert ways(tiered)["host"] > len(RETURNING.requests) / 2
    assert mean_ttft(tiered) < 0.4 * mean_ttft(without)


def test_conversations_that_left_the_host_are_read_from_disk() -> None:
    small = TierSettings(host_tokens=8_000)
    host = run(RETURNING, replace(POOL, tiers=small), "fixed:2")
    disk = run(RETURNING, replace(POOL, tiers=replace(small, disk_tokens=200_000)), "fixed:2")
    assert ways(disk)["disk"] > len(RETURNING.requests) / 2
    assert mean_ttft(disk) < 0.6 * mean_ttft(host)


@pytest.mark.parametrize(
    "slow",
    [
        TierSettings(100_000, host_load_rate=200.0),
        TierSettings(2_000, 200_000, host_load_rate=200.0, disk_load_rate=100.0),
    ],
)
def test_a_tier_that_is_slower_than_computing_is_tried_once_and_then_computed(
    slow: TierSettings,
) -> None:
    tiered = run(RETURNING, replace(POOL, tiers=slow), "fixed:2")
    found = ways(tiered)
    assert found["compute"] > len(RETURNING.requests) / 2
    assert found["host"] + found["disk"] <= 6
    assert mean_ttft(tiered) < 1.1 * mean_ttft(run(RETURNING, POOL, "fixed:2"))


def test_replicas_without_a_gateway_that_decides_load_from_a_slow_tier() -> None:
    slow = replace(POOL, tiers=TierSettings(100_000, host_load_rate=200.0))
    assert mean_ttft(run(RETURNING, slow, "serve-default")) > 2 * mean_ttft(
        run(RETURNING, POOL, "serve-default")
    )


def test_requests_behind_many_loads_are_computed() -> None:
    """Eight conversations return at once. Loading one takes a little less than computing it."""
    prompts = [tuple(person << 20 | i for i in range(40)) for person in range(20)]
    tokens = 40 * BLOCK_TOKENS + 1
    asked = [Request(2.0 * i, tokens, 2, blocks) for i, blocks in enumerate(prompts)]
    # the first load shows how fast the engine loads
    asked.append(Request(50.0, tokens, 2, prompts[8]))
    asked += [Request(60.0 + i / 100, tokens, 2, blocks) for i, blocks in enumerate(prompts[:8])]
    tiers = TierSettings(100_000, host_load_rate=3000.0)
    trace = Trace("burst", tuple(asked), 70.0, BLOCK_TOKENS)
    burst = chosen_of(run(trace, replace(POOL, tiers=tiers), "fixed:1"))[-8:]
    found = [way(chosen) for chosen in burst]
    assert found[0] == "host"
    assert found.count("compute") >= 2
    # a load is chosen again when the queue of prompts is longer than that of loads
    assert found.count("host") >= 3


def test_predicted_times_of_loads_are_right_in_simulation() -> None:
    result = run(RETURNING, replace(POOL, tiers=HOST), "fixed:2")
    errors = []
    for call in result.calls[20:]:
        assert call.attempt is not None and call.attempt.chosen is not None
        assert call.first_at is not None and call.placed_at is not None
        if call.attempt.chosen.host_load_s:
            took = call.first_at - call.placed_at
            errors.append(abs(call.attempt.chosen.predicted_ttft_s - took) / took)
    assert fmean(errors) < 0.1


def test_a_thousand_replicas_with_tiers_are_simulated_in_seconds() -> None:
    """Two agents of each team take turns. Their replica's cache has room for one of them."""
    requests = []
    for team in range(40):
        for turn in range(5):
            shared = [team << 20 | i for i in range(10)]
            own = [team << 20 | (turn % 2 + 1) << 10 | i for i in range(35)]
            at = 0.1 * team + 10.0 * turn
            requests.append(Request(at, 45 * BLOCK_TOKENS + 1, 4, (*shared, *own)))
    requests.sort(key=lambda request: request.at)
    trace = Trace("agents", tuple(requests), 60.0, BLOCK_TOKENS)
    tiers = TierSettings(host_tokens=720, disk_tokens=100_000)
    hardware = replace(HARDWARE, blocks=60)
    pool = replace(POOL, hardware=hardware, tiers=tiers, max_replicas=1000)
    began = time.process_time()
    result = run(trace, pool, "fixed:1000")
    assert time.process_time() - began < 60.0
    assert all(call.first_at is not None for call in result.calls)
    assert ways(result)["disk"] > 100
