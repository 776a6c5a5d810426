"""Updates, scale-downs and promotions as chaos tests see them: what ended, and that all are
back."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.drills import scenarios
from benchmarks.drills.scenarios import OVERFLOW, POOL, SCENARIOS
from benchmarks.drills.verdict import Injury
from benchmarks.harness.fleets.drilled_fleet import DrilledFleet
from cli.local.home import FleetState, Home
from deployments.fleet.fleet_file import load_fleet, parse_fleet
from router.board import active
from router.board.active import Active, ActiveWriter
from router.redis.redis_client import AsyncRedis, connect
from router.redis.signature import Signer

FLEET = f"""
name: drills
pools:
  {POOL}: {{model: org/one, replicas: 2, engine_args: {{max_num_seqs: 8}}}}
  {OVERFLOW}: {{model: org/other, warm_replicas: 1, slo: {{interactive: {{ttft_s: 20}}}}}}
"""


SIGNER = Signer("secret")


class FakeFleet(DrilledFleet):
    """`told`: the roles of a pool's replicas, each time that it is asked; the last ones go on."""

    def __init__(self, redis_url: str, told: Sequence[dict[str, str]]) -> None:
        self.description = parse_fleet(FLEET, check_engine_args=False)
        self.redis_url, self.signer = redis_url, SIGNER
        self.updates: list[dict[str, Any]] = []
        self._told = iter(told)
        self._last: dict[str, str] = {}
        self._all_told = threading.Event()

    async def roles(self, pool: str) -> dict[str, str]:
        found = next(self._told, None)
        if found is None:
            self._all_told.set()
        self._last = self._last if found is None else found
        return self._last

    async def status(self) -> dict[str, Any]:
        replicas = [{"startup_s": 9.0} for _ in self._last]
        return {POOL: {"states": {"RUNNING": len(self._last)}, "replicas": replicas}}

    async def is_whole(self) -> bool:
        return len(self._last) >= 2

    def update(self, pool: str, **fields: Any) -> None:
        assert pool == POOL
        self.updates.append(fields)
        if "engine_args" in fields:
            assert self._all_told.wait(60), "engines are replaced meanwhile"


@pytest.fixture(autouse=True)
def short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "PROMOTED_AFTER_S", 0.01)
    monkeypatch.setattr(scenarios, "LOOK_EVERY_S", 0.0)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


def both(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "active")


async def chaos_test_result(name: str, fleet: DrilledFleet) -> Injury:
    injury = await SCENARIOS[name](fleet)
    assert injury.planned and injury.over >= injury.began
    return injury


async def test_an_update_ends_once_each_engine_was_replaced() -> None:
    fleet = FakeFleet("", [both(*ids) for ids in ("abc", "bc", "bcd", "cd", "cde", "de", "def")])
    injury = await chaos_test_result("update", fleet)
    assert injury.replicas == {"a", "b", "c"} and set(await fleet.roles(POOL)) == set("def")
    assert not injury.wrong and injury.measured["fewest_serving"] == 2
    assert injury.measured["first_left_after_s"] >= 0
    assert injury.measured["from_leaving_to_next_s"] >= 0
    assert fleet.updates == [{"engine_args": {"max_num_seqs": 9}}]


async def test_an_update_that_takes_two_of_three_engines_at_once_is_wrong() -> None:
    leaving = both("a", "c") | {"a": "leaving"}
    fleet = FakeFleet("", [both(*"abc"), leaving, both(*"cde"), both(*"def")])
    assert (await chaos_test_result("update", fleet)).wrong == (
        "1 of 3 engines served (active, leaving)",
    )


async def test_engines_unknown_to_a_gateway_do_not_count_as_lost() -> None:
    unknown = dict.fromkeys("bc", "unknown")
    looks = [both(*"abc"), both(*"bcd"), unknown, both(*"bcd"), both(*"def")]
    injury = await chaos_test_result("update", FakeFleet("", looks))
    assert not injury.wrong and injury.measured["fewest_serving"] == 3
    assert 0 < injury.measured["not_known"] < injury.measured["looks"]
    fleet = FakeFleet("", [both(*"abc"), unknown, dict.fromkeys("def", "unknown")])
    (wrong,) = (await chaos_test_result("update", fleet)).wrong
    assert wrong.startswith("how many served was not known at ")


async def test_the_chaos_test_of_a_scale_down_hits_a_leaving_replica() -> None:
    fleet = FakeFleet("", [both("a", "b"), both("a", "b"), both("a"), both("a", "c")])

    async def asked() -> bool:
        return len(await fleet.roles(POOL)) == 2

    fleet.is_whole = asked  # type: ignore[method-assign]
    assert (await chaos_test_result("scale-down", fleet)).replicas == {"b"}
    assert fleet.updates == [{"replicas": 1}, {"replicas": 2}]


async def test_the_chaos_test_of_a_promotion_writes_what_a_gateway_writes(
    redis: AsyncRedis, redis_url: str
) -> None:
    board = f"drills/{OVERFLOW}"
    await ActiveWriter(redis, board, SIGNER).publish(2, None)
    warm = {"a": "active", "b": "warm"}
    fleet = FakeFleet(redis_url, [warm, warm, both("a", "b")])
    assert (await chaos_test_result("promotion", fleet)).replicas == {"a", "b"}
    assert await active.read(redis, board, SIGNER) == Active(2, promoted=1)


def test_the_changed_fleet_file_is_passed_to_antefix_update(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file := tmp_path / "fleet.yaml").write_text(FLEET)
    home = Home(tmp_path)
    state = FleetState("no run", str(file), "", "127.0.0.1", 1, "", "", 1.0, 0.0)
    home.save_state(replace(state, redis_url="redis://127.0.0.1:1/0"))
    of: Any = SimpleNamespace(home=tmp_path)
    fleet = DrilledFleet(of)
    run: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: run.append(command))
    fleet.update(POOL, replicas=1)
    assert run[0][-4:] == ["update", str(file), "-o", "json"]
    assert load_fleet(file, check_engine_args=False).pools[POOL].replicas == 1
