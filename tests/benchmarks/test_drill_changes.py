"""Rollouts, scale-downs and promotions as drills see them: what went, and that all are back."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from benchmarks.drills import scenarios
from benchmarks.drills.fleet import DrilledFleet
from benchmarks.drills.scenarios import OVERFLOW, POOL, SCENARIOS
from benchmarks.drills.verdict import Injury
from deployments.fleet.fleet import Fleet
from deployments.fleet.fleet_file import parse_fleet
from router import active
from router.active import Active
from router.fleet_settings import SettingsWriter, read_settings
from router.redis_client import AsyncRedis, connect
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess

FLEET = f"""
name: drills
pools:
  {POOL}: {{model: org/one, replicas: 2}}
  {OVERFLOW}: {{model: org/other, warm_replicas: 1, slo: {{interactive: {{ttft_s: 20}}}}}}
"""


class FakeFleet(DrilledFleet):
    """`told`: the roles of a pool's replicas, each time that it is asked; the last ones go on."""

    def __init__(self, redis_url: str, told: Sequence[dict[str, str]]) -> None:
        self.description: Fleet = parse_fleet(FLEET, check_engine_args=False)
        self.redis_url = redis_url
        self.scaled_to: list[int] = []
        self.redeployed: list[str] = []
        self._told = iter(told)
        self._last: dict[str, str] = {}

    async def roles(self, pool: str) -> dict[str, str]:
        self._last = next(self._told, self._last)
        return self._last

    async def status(self) -> dict[str, Any]:
        return {POOL: {"states": {"RUNNING": len(self._last)}}}

    async def is_whole(self) -> bool:
        return len(self._last) == 2

    def scale(self, pool: str, replicas: int) -> None:
        self.scaled_to.append(replicas)

    def redeploy(self, pool: str, **env: str) -> None:
        assert env
        self.redeployed.append(pool)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "PROMOTED_AFTER_S", 0.01)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


def both(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "active")


async def drilled(name: str, fleet: DrilledFleet) -> Injury:
    injury = await SCENARIOS[name](fleet)
    assert injury.planned and injury.over >= injury.began
    return injury


async def test_a_rollout_is_over_once_each_engine_is_another() -> None:
    fleet = FakeFleet("", [both("a", "b"), both("b", "c"), both("c"), both("c", "d")])
    assert (await drilled("rollout", fleet)).replicas == {"a", "b"}
    assert fleet.redeployed == [POOL] and set(await fleet.roles(POOL)) == {"c", "d"}


async def test_who_leaves_in_a_scale_down_is_hit_and_all_are_back() -> None:
    fleet = FakeFleet("", [both("a", "b"), both("a", "b"), both("a"), both("a", "c")])

    async def asked() -> bool:
        return len(await fleet.roles(POOL)) == 2

    fleet.is_whole = asked  # type: ignore[method-assign]
    assert (await drilled("scale-down", fleet)).replicas == {"b"}
    assert fleet.scaled_to == [1, 2]


async def test_a_promotion_is_what_a_gateway_writes(redis: AsyncRedis, redis_url: str) -> None:
    board = f"drills/{OVERFLOW}"
    await active.publish(redis, board, 2, None)
    warm = {"a": "active", "b": "warm"}
    fleet = FakeFleet(redis_url, [warm, warm, both("a", "b")])
    assert (await drilled("promotion", fleet)).replicas == {"a", "b"}
    assert await active.read(redis, board) == Active(2, promoted=1)


@pytest.fixture
def client(server: RedisProcess) -> Iterator[Any]:
    with control(server) as client:
        yield client


async def test_the_autoscaler_is_told_of_another_number_of_replicas(
    redis: AsyncRedis, client: Any
) -> None:
    fleet = object.__new__(DrilledFleet)
    fleet.description = parse_fleet(FLEET, check_engine_args=False)
    fleet.client = client
    gateway = SettingsWriter(redis, "drills")
    gateway.give(json.dumps(fleet.description.model_dump(mode="json")))
    await gateway.write()
    fleet.scale(POOL, 1)
    await gateway.write()  # it is not given anything newer
    found = await read_settings(redis, "drills")
    assert found is not None
    assert Fleet.model_validate_json(found.fleet).pools[POOL].replicas == 1
