"""What `prefix` promises for each kind of traffic, on a simulated pool with fixed seeds.

The same comparisons on real engines are `make bench-routing`.
"""

from dataclasses import replace
from functools import cache

import pytest

from tests.router.simulated_pool import (
    CPU,
    GPU,
    Report,
    SimulatedPool,
    multi_turn,
    single_turns,
)

TRAFFIC = {
    "multi_turn": (GPU, multi_turn(5, 30)),
    "multi_turn, loaded": (GPU, multi_turn(6, 15, user=(200, 2000))),
    "shared_system": (GPU, multi_turn(5, 20, system_tokens=2048)),
    "hot_prefix": (GPU, single_turns(60, 12, (200, 2000), shared=0.5, system_tokens=2048)),
    "hot_prefix, hardly loaded": (
        CPU,
        single_turns(2, 150, (200, 1500), shared=0.5, system_tokens=2048),
    ),
    "short": (GPU, single_turns(150, 4, (20, 100))),
    "no_reuse": (CPU, single_turns(5, 60, (200, 1500))),
    # together they fit into the caches of the pool, but not into each of them
    "many_prefixes": (
        replace(GPU, blocks=600),
        single_turns(40, 15, (1, 1), shared=1.0, system_tokens=4096, systems=60),
    ),
}


@cache
def served(traffic: str, policy: str = "prefix", replicas: int = 8, gateways: int = 1) -> Report:
    hardware, conversations = TRAFFIC[traffic]
    return SimulatedPool(policy, hardware, replicas, gateways).serve(conversations)


@pytest.mark.parametrize("traffic", ["multi_turn", "multi_turn, loaded"])
def test_conversations_reuse_almost_all_tokens_that_an_unlimited_cache_would_hold(
    traffic: str,
) -> None:
    report = served(traffic)
    assert report.cached_ratio >= 0.97
    assert report.mean_ttft < served(traffic, "least_loaded").mean_ttft
    assert report.p99_ttft < served(traffic, "least_loaded").p99_ttft


@pytest.mark.parametrize("replicas", [4, 8])
@pytest.mark.parametrize("traffic", ["hot_prefix", "hot_prefix, hardly loaded"])
def test_a_prefix_with_half_of_the_traffic_overloads_no_replica(
    traffic: str, replicas: int
) -> None:
    assert served(traffic, replicas=replicas).most_over_mean <= 1.25


@pytest.mark.parametrize("traffic", ["short", "no_reuse"])
def test_with_nothing_to_reuse_it_is_no_worse_than_least_loaded(traffic: str) -> None:
    assert served(traffic).mean_ttft <= served(traffic, "least_loaded").mean_ttft / 0.98


@pytest.mark.parametrize("traffic", TRAFFIC)
def test_prefix_placement_is_never_worse_than_random(traffic: str) -> None:
    assert served(traffic).mean_ttft <= served(traffic, "random").mean_ttft
    assert served(traffic).cached_ratio >= served(traffic, "random").cached_ratio - 0.01


def test_many_prefixes_stay_at_their_replicas() -> None:
    assert served("many_prefixes").cached_ratio >= 0.95


@pytest.mark.parametrize("traffic", ["multi_turn", "hot_prefix"])
def test_eight_gateways_reuse_as_many_tokens_as_one(traffic: str) -> None:
    eight, one = served(traffic, gateways=8), served(traffic)
    assert eight.cached_ratio == pytest.approx(one.cached_ratio, abs=0.02)


@pytest.mark.parametrize("traffic", ["hot_prefix", "short", "no_reuse"])
def test_eight_gateways_spread_the_load_evenly(traffic: str) -> None:
    assert served(traffic, gateways=8).variation <= 0.05
