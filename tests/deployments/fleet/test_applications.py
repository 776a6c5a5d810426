"""What of a fleet's change restarts which process."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from pydantic import BaseModel

from deployments.fleet.applications import restarts, serve_config, settings_of
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.fleet.reach import Reach

FLEET: dict[str, Any] = {
    "name": "example",
    "gateway": {"host": "0.0.0.0", "port": 8000, "replicas": 2},
    "redis": {"url": "redis://:secret@there:6379/0", "lookup_budget_ms": 5.0},
    "pools": {
        "large": {
            "model": "org/large",
            "env": {"HF_TOKEN": "secret"},
            "slo": {"interactive": {"ttft_s": 2.0}},
            "overflow": {"to": "small"},
        },
        "small": {"model": "org/small", "engine_args": {"max_model_len": 2048}},
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    fleet = deepcopy(FLEET)
    *above, last = path.split(".")
    section = fleet
    for key in above:
        section = section.setdefault(key, {})
    section[last] = value
    return fleet


def reaches(of: type[BaseModel]) -> Iterator[tuple[str, int]]:
    """Yield each setting below sections without a reach, with the number of its reaches."""
    for name, field in of.model_fields.items():
        number = sum(isinstance(mark, Reach) for mark in field.metadata)
        section = field.annotation
        if not number and isinstance(section, type) and issubclass(section, BaseModel):
            yield from reaches(section)
        elif name != "pools":
            yield name, number


@pytest.mark.parametrize("of", [Fleet, Pool])
def test_every_setting_applies_to_exactly_one_scope(of: type[BaseModel]) -> None:
    assert {name for name, number in reaches(of) if number != 1} == set()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("pools.small.slo", {"interactive": {"ttft_s": 1.0}}),
        ("pools.small.policy", "random"),
        ("pools.large.overflow", None),
        ("pools.small.autoscaling", {"max_replicas": 4}),
        ("pools.small.replicas", 2),
        ("gateway.tenants", {"a": {"priority": "batch"}}),
        ("gateway.replicas", 3),
        ("gpu_budget", 8.0),
        ("surge_percent", 100),
    ],
)
def test_a_hot_field_restarts_nothing(path: str, value: Any) -> None:
    found = restarts(FLEET, changed(path, value))
    assert found.nothing and found.reaches_running == (path,)


@pytest.mark.parametrize("path", ["pools.small.engine_args.max_model_len", "pools.small.env.A"])
def test_a_setting_that_an_engine_reads_at_its_start_restarts_only_its_pool(path: str) -> None:
    found = restarts(FLEET, changed(path, 1024))
    assert (found.gateways, found.pools, found.nothing) == (False, frozenset({"small"}), False)


def test_a_changed_gateway_address_restarts_only_gateways() -> None:
    found = restarts(FLEET, changed("gateway.port", 8001))
    assert (found.gateways, found.pools) == (True, frozenset())


def test_the_name_restarts_everything() -> None:
    found = restarts(FLEET, changed("name", "other"))
    assert (found.gateways, found.pools) == (True, frozenset({"large", "small"}))


def test_a_pool_may_be_added_and_removed() -> None:
    more = changed("pools.third", {"model": "org/third"})
    found = restarts(FLEET, more)
    assert (found.added, found.nothing) == (frozenset({"third"}), True)
    found = restarts(more, FLEET)
    assert (found.removed, found.pools, found.nothing) == (frozenset({"third"}), frozenset(), False)


def test_a_null_equals_a_missing_key_but_an_explicit_default_does_not() -> None:
    assert restarts(FLEET, changed("pools.small.speculation", None)).nothing
    # Ray Serve compares what is written
    assert restarts(FLEET, changed("pools.small.prefill_rate", 1)).pools == {"small"}
    assert restarts(changed("gateway.cpus", 1), changed("gateway.cpus", 1.0)).gateways


def test_settings_of_gateways_contain_no_secret() -> None:
    assert "secret" not in str(settings_of(FLEET))
    Fleet.model_validate(settings_of(FLEET))


def test_each_pool_is_a_separate_application_with_a_fleet_of_one_pool() -> None:
    gateways, *pools = serve_config(FLEET)["applications"]
    assert gateways["name"] == "antefix"
    assert [pool["name"] for pool in pools] == ["antefix-large", "antefix-small"]
    for pool in pools:
        assert len(Fleet.model_validate(pool["args"]["fleet"]).pools) == 1
