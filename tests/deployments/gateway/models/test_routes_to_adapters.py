"""A model may lead to LoRA adapters: split, with aliases, and with one of them as its canary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from tests.deployments.gateway.models.test_shared_adapters import (
    loads,
    names,
    status_and_model,
    unloads,
)
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.fakes.loras import write_adapter
from tests.sentences import assert_sentences
from tests.waiting import until


def question_body(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"question {number}"}]}


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    return FakeEngine("r0", adapter_sources=[str(tmp_path)])


@pytest.fixture
async def front(engine: FakeEngine, redis_url: str, tmp_path: Path) -> AsyncIterator[Front]:
    pool = {"adapters": {"sources": [str(tmp_path)]}}
    async with gateway_before(
        engine, redis_url=redis_url, pool=pool, lookup_budget_ms=1000.0
    ) as front:
        await until(lambda: len(front.pool.scheduler.board.loads()) == 1)
        for name in ("sql-1", "sql-2"):
            await load(front, name, tmp_path)
        yield front


async def load(front: Front, name: str, folder: Path, **more: Any) -> None:
    status, told = await loads(front, name, write_adapter(folder / name, name.encode()), **more)
    assert status == 200, told


async def sets(front: Front, **route: Any) -> None:
    settings = settings_of(front.gateway.parts.in_force.fleet.model_dump(mode="json"))
    await front.gateway.reconfigure({**settings, "models": {"sql": route}})


async def adapter_of(front: Front, number: int, model: str = "sql") -> str:
    """The adapter that answers a conversation."""
    status, engine_name = await status_and_model(front, model, **question_body(number))
    assert status == 200
    return engine_name.partition("@")[0]


async def test_conversations_are_split_and_each_stays_with_its_adapter(front: Front) -> None:
    await sets(front, adapters={"sql-1": 1, "sql-2": 1}, aliases=["queries"])
    first = [await adapter_of(front, n) for n in range(12)]
    assert set(first) == {"sql-1", "sql-2"}
    await sets(front, adapters={"sql-1": 1, "sql-2": 1e-9}, aliases=["queries"])
    assert [await adapter_of(front, n, "queries") for n in range(12)] == first
    assert {await adapter_of(front, n) for n in range(20, 30)} == {"sql-1"}


async def test_clients_see_a_route_to_adapters_as_a_model(front: Front, engine: FakeEngine) -> None:
    await sets(front, adapters={"sql-1": 1}, aliases=["queries"])
    assert sorted(await names(front)) == ["queries", MODEL, "sql", "sql-1", "sql-2"]
    async with front.get("/v1/models/queries") as answer:
        assert (await answer.json())["id"] == "queries"
    await adapter_of(front, 1, "queries")
    assert json.loads(engine.bodies[-1])["model"].startswith("sql-1@")
    metrics = await front.metrics()
    assert metrics["antefix_model_requests_total", "sql-1", "sql", "ok"] == 1


async def test_the_name_of_the_pools_model_stands_for_no_adapter(front: Front) -> None:
    await sets(front, adapters={MODEL: 1, "sql-1": 1})
    assert {await adapter_of(front, n) for n in range(12)} == {MODEL, "sql-1"}


async def test_a_model_may_have_the_name_of_its_adapter(front: Front, tmp_path: Path) -> None:
    await load(front, "sql", tmp_path)
    await sets(front, adapters={"sql": 1, "sql-2": 1})
    assert {await adapter_of(front, n) for n in range(12)} == {"sql", "sql-2"}
    # and the adapter can still be replaced
    await load(front, "sql", tmp_path / "newer", load_inplace=True)


async def test_an_adapter_that_is_not_loaded_gets_no_requests(front: Front, tmp_path: Path) -> None:
    await sets(front, adapters={"sql-1": 1, "sql-3": 1000})
    assert {await adapter_of(front, n) for n in range(8)} == {"sql-1"}
    await load(front, "sql-3", tmp_path)
    assert "sql-3" in {await adapter_of(front, n) for n in range(20, 28)}
    assert (await unloads(front, "sql-3"))[0] == 200
    assert {await adapter_of(front, n) for n in range(20, 28)} == {"sql-1"}


async def test_without_a_loaded_adapter_the_error_names_them(front: Front) -> None:
    await sets(front, adapters={"sql-3": 1, "sql-4": 1})
    async with front.post(model="sql") as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["code"]) == (404, "model_not_found")
    assert "sql-3, sql-4" in error["message"] and "load" in error["message"]
    assert_sentences(error["message"])
    assert "sql" not in await names(front)


def canary_of(front: Front) -> Any:
    return front.gateway.parts.canaries.by_route["sql"]


@pytest.mark.parametrize("fails", [False, True], ids=["as good", "failing"])
async def test_an_adapter_can_be_the_canary(front: Front, engine: FakeEngine, fails: bool) -> None:
    canary = {"adapter": "sql-2", "steps": [50, 100], "step_s": 0.2, "requests": 10}
    await sets(front, adapters={"sql-1": 1}, canary=canary)
    if fails:
        engine.fails_adapter = "sql-2"
    await until(lambda: canary_of(front).state is not None)
    number = 0
    async with asyncio.timeout(60):
        while canary_of(front).state.status == "running":
            await status_and_model(front, "sql", **question_body(number))
            number += 1
    assert canary_of(front).state.status == ("aborted" if fails else "promoted")
    assert {await adapter_of(front, number + n) for n in range(8)} == {
        "sql-1" if fails else "sql-2"
    }
    async with front.get("/antefix/canaries") as answer:
        status: Mapping[str, Any] = (await answer.json())["sql"]
    assert status["adapter"] == "sql-2" and "pool" not in status


async def test_a_canary_that_is_not_loaded_gets_no_requests(front: Front) -> None:
    await sets(front, adapters={"sql-1": 1}, canary={"adapter": "sql-3", "steps": [100]})
    await until(lambda: canary_of(front).share == 1)
    assert {await adapter_of(front, n) for n in range(8)} == {"sql-1"}
