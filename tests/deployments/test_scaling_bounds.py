"""How many replicas a pool may have is Ray Serve's to say, not Redis'."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from deployments.scaling_bounds import ScalingBounds, ask_serve, bounds_of, given_to_serve

POOL = {"model": "org/model", "replicas": 2, "slo": {"interactive": {"ttft_s": 2.0}}}
SCALED = {**POOL, "autoscaling": {"min_replicas": 1, "max_replicas": 6}}


def fleet_of(pool: dict[str, Any]) -> Fleet:
    return Fleet.model_validate({"name": "test", "pools": {"engine": pool}})


def details(user_config: Any) -> dict[str, Any]:
    """What Ray Serve reports of itself, in part."""
    gateway = {"deployment_config": {"user_config": user_config}}
    return {"applications": {"antefix": {"deployments": {"gateway": gateway}}}}


@pytest.mark.parametrize(
    ("pool", "bounds"),
    [
        (POOL, (2, 2)),
        ({**POOL, "warm_replicas": 1}, (3, 3)),
        (SCALED, (1, 6)),
        ({**SCALED, "warm_replicas": 1}, (1, 6)),
        ({**POOL, "autoscaling": {"min_replicas": 0, "max_replicas": 1}}, (0, 1)),
    ],
)
def test_the_bounds_of_a_pool_are_those_of_its_fleet_file(
    pool: dict[str, Any], bounds: tuple[int, int]
) -> None:
    fleet = fleet_of(pool)
    assert bounds_of(fleet.pools["engine"]) == ScalingBounds(*bounds)
    given = settings_of(fleet.model_dump(mode="json"))
    assert given_to_serve(details(given), "engine") == ScalingBounds(*bounds)


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"applications": None},
        {"applications": {"antefix": {"deployments": {}}}},
        details(None),
        details({"name": "test", "pools": {}}),
        details({"name": "test", "pools": {"engine": {"model": "org/model", "replicas": "many"}}}),
        details({"name": "test", "pools": {"other": POOL}}),
    ],
)
def test_bounds_that_ray_serve_does_not_give_are_none(found: dict[str, Any]) -> None:
    assert given_to_serve(found, "engine") is None


def test_without_ray_nothing_is_asked() -> None:
    assert ask_serve("engine") is None


numbers = st.integers(0, 10**6)


@given(numbers, numbers, numbers, numbers)
def test_a_target_outside_the_bounds_is_limited_to_the_current_number(
    least: int, more: int, target: int, current: int
) -> None:
    bounds = ScalingBounds(least, least + more)
    found = bounds.clipped(target, current)
    assert min(least, current) <= found <= max(bounds.most, current)
    assert found == target or found in (least, bounds.most, current)
