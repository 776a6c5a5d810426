"""How many placeholders there are, as a function of what is seen."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8s.nodes.warm_nodes import (
    HOLD_S,
    Expected,
    PodCounts,
    WarmNodesDecision,
    WarmNodesLimits,
    WarmNodesPool,
    decide,
)

POOL = WarmNodesPool("big", pods_per_replica=1, max_replicas=10, warm_replicas=0, gpus_per_pod=4)
STEADY = Expected(demand=2, arrivals=5.0, forecast=5.0)
GROWING = Expected(demand=2, arrivals=5.0, forecast=10.0)
ROOMY = WarmNodesLimits(max_per_pool=5, free_gpus=float("inf"))

rates = st.floats(min_value=0, allow_nan=False, allow_infinity=False)
expectations = st.builds(Expected, st.integers(0, 50), arrivals=rates, forecast=st.none() | rates)
pools = st.builds(
    WarmNodesPool,
    name=st.just("big"),
    pods_per_replica=st.integers(1, 4),
    max_replicas=st.integers(1, 50),
    warm_replicas=st.integers(0, 3),
    gpus_per_pod=st.integers(1, 8),
)
sights = st.builds(
    PodCounts, st.integers(0, 100), st.integers(0, 20), expected=st.none() | expectations
)
limits = st.builds(
    WarmNodesLimits, st.integers(0, 10), st.floats(-8, 100), engine_waits=st.booleans()
)
ages = st.none() | st.floats(0, 2 * HOLD_S)


def decided(
    seen: PodCounts,
    pool: WarmNodesPool = POOL,
    limits: WarmNodesLimits = ROOMY,
    since: Mapping[str, float] | None = None,
    now: float = 0.0,
) -> WarmNodesDecision:
    return decide([pool], {pool.name: seen}, limits, since or {}, now)


def placeholders(
    seen: PodCounts, pool: WarmNodesPool = POOL, limits: WarmNodesLimits = ROOMY
) -> int:
    return decided(seen, pool, limits).placeholders[pool.name]


@given(pools, sights, limits, ages)
def test_the_number_of_placeholders_is_within_its_bounds(
    pool: WarmNodesPool, seen: PodCounts, limits: WarmNodesLimits, age: float | None
) -> None:
    since = {} if age is None else {pool.name: -age}
    number = decided(seen, pool, limits, since).placeholders[pool.name]
    assert 0 <= number <= limits.max_per_pool
    assert number == 0 or number * pool.gpus_per_pod <= limits.free_gpus
    assert number == 0 or seen.pods + number <= pool.max_replicas * pool.pods_per_replica


@given(pools, sights, limits, ages, expectations, rates)
def test_a_higher_forecast_never_lowers_the_number_of_placeholders(
    pool: WarmNodesPool,
    seen: PodCounts,
    limits: WarmNodesLimits,
    age: float | None,
    expected: Expected,
    more: float,
) -> None:
    since = {} if age is None else {pool.name: -age}
    higher = replace(expected, forecast=(expected.forecast or 0.0) + more)
    fewer, no_fewer = (
        decided(replace(seen, expected=of), pool, limits, since).placeholders[pool.name]
        for of in (expected, higher)
    )
    assert fewer <= no_fewer


@given(st.lists(sights, min_size=2, max_size=4), limits)
def test_no_pool_has_placeholders_while_an_engine_waits_for_a_gpu(
    sights: list[PodCounts], limits: WarmNodesLimits
) -> None:
    fleet = [replace(POOL, name=f"pool-{n}") for n in range(len(sights))]
    seen = {pool.name: of for pool, of in zip(fleet, sights, strict=True)}
    decision = decide(fleet, seen, replace(limits, engine_waits=True), {}, 0.0)
    assert set(decision.placeholders.values()) == {0}


@given(st.lists(st.tuples(pools, sights), min_size=1, max_size=4), limits)
def test_all_pools_together_stay_within_the_gpus_that_are_free(
    given_pools: list[tuple[WarmNodesPool, PodCounts]], limits: WarmNodesLimits
) -> None:
    fleet = [replace(pool, name=f"pool-{n}") for n, (pool, _) in enumerate(given_pools)]
    seen = {pool.name: of for pool, (_, of) in zip(fleet, given_pools, strict=True)}
    decision = decide(fleet, seen, limits, {}, 0.0)
    used = sum(decision.placeholders[pool.name] * pool.gpus_per_pod for pool in fleet)
    assert used <= max(0, limits.free_gpus)


def test_without_growth_no_placeholders_are_added() -> None:
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=STEADY)) == 0


def test_expected_growth_adds_placeholders_in_proportion() -> None:
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=GROWING)) == 2


def test_fractional_growth_adds_one_whole_placeholder() -> None:
    expected = Expected(demand=2, arrivals=10.0, forecast=12.0)
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=expected)) == 1


def test_negligible_growth_adds_no_placeholder() -> None:
    expected = Expected(demand=2, arrivals=10.0, forecast=10.1)
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=expected)) == 0


def test_a_falling_forecast_still_keeps_what_is_needed_now() -> None:
    expected = Expected(demand=3, arrivals=10.0, forecast=1.0)
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=expected)) == 1


def test_warm_replicas_need_nodes_too() -> None:
    pool = replace(POOL, warm_replicas=1)
    assert placeholders(PodCounts(pods=2, placeholders=0, expected=STEADY), pool) == 1


def test_each_stage_of_a_replica_needs_a_node() -> None:
    pool = replace(POOL, pods_per_replica=2)
    assert placeholders(PodCounts(pods=4, placeholders=0, expected=GROWING), pool) == 4


@pytest.mark.parametrize(
    ("limits", "pods"),
    [
        (replace(ROOMY, max_per_pool=1), 2),
        (replace(ROOMY, free_gpus=7.0), 2),
        (ROOMY, 9),
    ],
    ids=["maxPerPool", "gpu_budget", "max_replicas"],
)
def test_the_number_of_placeholders_stays_within_each_limit(
    limits: WarmNodesLimits, pods: int
) -> None:
    seen = PodCounts(pods, 0, Expected(demand=9, arrivals=1.0, forecast=9.0))
    assert placeholders(seen, limits=limits) == 1


def test_pools_share_the_remaining_gpus_in_turns() -> None:
    fleet = [POOL, replace(POOL, name="other")]
    seen = {pool.name: PodCounts(2, 0, GROWING) for pool in fleet}
    decision = decide(fleet, seen, replace(ROOMY, free_gpus=8.0), {}, 0.0)
    assert decision.placeholders == {"big": 1, "other": 1}


def test_an_unknown_forecast_changes_nothing() -> None:
    assert placeholders(PodCounts(pods=2, placeholders=2, expected=None)) == 2


def test_surplus_placeholders_are_removed_one_by_one_each_after_the_hold_time() -> None:
    seen, last = PodCounts(2, 3, STEADY), WarmNodesDecision({}, {})
    numbers = []
    for now in (0.0, HOLD_S - 1, HOLD_S, HOLD_S + 15, 2 * HOLD_S, 3 * HOLD_S):
        last = decided(seen, since=last.too_many_since, now=now)
        seen = replace(seen, placeholders=last.placeholders["big"])
        numbers.append(seen.placeholders)
    assert numbers == [3, 3, 2, 2, 1, 0]


def test_the_hold_time_restarts_when_placeholders_were_needed_in_between() -> None:
    first = decided(PodCounts(2, 2, STEADY), now=0.0)
    needed = decided(PodCounts(2, 2, GROWING), since=first.too_many_since, now=HOLD_S - 1)
    last = decided(PodCounts(2, 2, STEADY), since=needed.too_many_since, now=HOLD_S + 1)
    assert last.placeholders == {"big": 2}
