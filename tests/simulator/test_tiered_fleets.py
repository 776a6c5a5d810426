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
from simulator.fleet import Call, SimulatedFleet
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
    if chosen.pulls:
        return "peer"
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


def bursts(topics: int) -> Trace:
    """A request about each topic, and five seconds later 32 at nearly the same time."""
    asked = []
    for topic in range(topics):
        prefix, at = [topic << 20 | i for i in range(100)], 10.0 * topic
        times = [at, *(at + 5.0 + n / 50 for n in range(32))]
        for number, arrives in enumerate(times):
            own = [topic << 20 | (number + 1) << 10 | i for i in range(2)]
            asked.append(Request(arrives, 102 * BLOCK_TOKENS + 1, 100, (*prefix, *own)))
    return Trace("bursts", tuple(asked), 10.0 * topics, BLOCK_TOKENS)


BURSTS = bursts(10)
# The caches hold all prefixes, and no replica can serve a burst alone.
WIDE = replace(POOL, hardware=replace(HARDWARE, blocks=1200, sequences=8), tiers=HOST)
PEERS = replace(WIDE, tiers=replace(HOST, peers=True))


def test_replicas_pull_a_prefix_that_the_only_replica_with_it_cannot_serve() -> None:
    without, pulling = run(BURSTS, WIDE, "fixed:4"), run(BURSTS, PEERS, "fixed:4")
    assert ways(without).keys() == {"cache"}
    # each of the other three replicas pulls most of the prefixes
    assert ways(pulling)["peer"] > 20
    assert mean_ttft(pulling) < 0.75 * mean_ttft(without)


def test_a_pull_takes_the_predicted_time_on_an_idle_replica() -> None:
    beginning = replace(BURSTS, requests=BURSTS.requests[:20])
    called = [chosen.pulls for chosen in chosen_of(run(beginning, PEERS, "fixed:4"))].index(True)
    # without later requests, which would share the engine's step
    result = run(replace(BURSTS, requests=BURSTS.requests[: called + 1]), PEERS, "fixed:4")
    chosen, call = chosen_of(result)[-1], result.calls[-1]
    assert call.first_at is not None and call.placed_at is not None
    assert chosen.pulls
    assert chosen.peer_id != chosen.replica_id
    assert chosen.raw_ttft_s == pytest.approx(call.first_at - call.placed_at, rel=0.05)


def test_pulls_that_take_longer_than_computing_are_tried_once_per_replica() -> None:
    slow = replace(PEERS, tiers=replace(HOST, peers=True, peer_load_rate=200.0))
    assert 1 <= ways(run(BURSTS, slow, "fixed:4"))["peer"] <= 4


def test_replicas_without_a_gateway_that_decides_do_not_pull() -> None:
    pulling, without = (run(BURSTS, of, "serve-default") for of in (PEERS, WIDE))
    assert [call.ttft for call in pulling.calls] == [call.ttft for call in without.calls]


def test_a_replica_that_is_gone_serves_no_blocks() -> None:
    fleet = SimulatedFleet(HARDWARE, 20.0, 2, HOST)
    leaving = fleet.serving[1]
    leaving.submit(Call(0, Request(0.0, 2 * BLOCK_TOKENS + 1, 1, (7, 8))), 0, 0.0)
    fleet.advance(1.0)
    assert leaving.serves(7)
    fleet.scale_to(1, 1.0)
    assert not leaving.serves(7)


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


def test_a_thousand_replicas_that_pull_are_simulated_in_seconds() -> None:
    began = time.process_time()
    result = run(bursts(3), replace(PEERS, max_replicas=1000), "fixed:1000")
    assert time.process_time() - began < 60.0
    assert all(call.first_at is not None for call in result.calls)
    assert ways(result)["peer"] > 10


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
