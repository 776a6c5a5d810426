"""A gateway takes other settings while it serves; `tests/on_serve` has it in Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest

from deployments.fleet.applications import settings_of
from deployments.gateway.gateway import Gateway
from deployments.gateway.gateway_parts import Secrets
from tests.fakes.engine import SECRET, FakeEngine
from tests.fakes.front import KEY, TENANT, Front, _Gateway, gateway_before
from tests.waiting import until


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
async def front(engine: FakeEngine) -> AsyncIterator[Front]:
    pool = {"slo": {"interactive": {"ttft_s": 0.5}}}
    async with gateway_before(engine, pool=pool, small=FakeEngine("r9", model="tiny")) as front:
        yield front


def settings(front: Front) -> dict[str, Any]:
    return deepcopy(settings_of(front.gateway.parts.in_force.fleet.model_dump(mode="json")))


async def status_of(front: Front) -> Any:
    async with front.get("/antefix/status") as answer:
        return await answer.json()


async def test_a_changed_slo_applies_from_the_next_request(
    front: Front, engine: FakeEngine
) -> None:
    """What the pool has learned and its queued requests stay; nothing is made anew."""
    pool, board = front.pool, front.pool.scheduler.board
    given = settings(front)
    given["pools"]["main"]["slo"]["interactive"]["ttft_s"] = 2.0
    given["pools"]["main"]["overflow"] = {"to": "small"}
    front.sees_queues({engine: 1000})  # a second
    async with front.post() as answer:
        assert answer.status == 429
    await front.gateway.reconfigure(given)
    assert front.pool is pool and pool.scheduler.board is board
    async with front.post(headers={"x-antefix-overflow": "never"}) as answer:
        assert answer.status == 200
    assert (await status_of(front))["pools"]["main"]["overflow_to"] == "small"
    assert (await front.metrics())["antefix_slo_threshold_seconds", "ttft", "interactive"] == 2.0


async def test_a_removed_slo_is_no_longer_applied(front: Front) -> None:
    given = settings(front)
    given["pools"]["main"]["slo"] = {}
    await front.gateway.reconfigure(given)
    threshold = (await front.metrics())["antefix_slo_threshold_seconds", "ttft", "interactive"]
    assert threshold != threshold  # NaN: an alert that divides by it is silent


async def test_changed_limits_and_rights_apply_at_once(front: Front) -> None:
    given = settings(front)
    given["gateway"]["max_body_bytes"] = 1024
    given["gateway"]["tenants"] = {TENANT: {"operator": True}}
    await front.gateway.reconfigure(given)
    async with front.post(prompt="x" * 2000) as answer:
        assert answer.status == 413
    assert front.gateway.parts.explanations.for_operators


@pytest.mark.parametrize(
    ("path", "value"),
    [("policy", "best"), ("slo", {"interactive": {}}), ("overflow", {"to": "nowhere"})],
)
async def test_settings_that_cannot_be_used_change_nothing(
    front: Front, path: str, value: Any
) -> None:
    before, given = front.gateway.parts.in_force.fleet, settings(front)
    given["pools"]["main"][path] = value
    given["pools"]["main"]["batch_queue"] = 1
    await front.gateway.reconfigure(given)
    assert front.gateway.parts.in_force.fleet is before
    assert f"pools.main.{path}" in (await status_of(front))["settings_refused"]
    assert (await front.metrics())["antefix_settings_refused",] == 1
    await front.gateway.check_health()
    async with front.post() as answer:
        assert answer.status == 200
    await front.gateway.reconfigure(settings(front))
    assert (await status_of(front))["settings_refused"] is None
    assert (await front.metrics())["antefix_settings_refused",] == 0


def running() -> int:
    """How many pools a gateway keeps up."""
    return sum(task.get_name() == "pool" for task in asyncio.all_tasks())


async def test_a_removed_pool_ends_once_no_request_waits_in_it(front: Front) -> None:
    given = settings(front)
    del given["pools"]["small"]
    assert running() == 2
    await front.gateway.reconfigure(given)
    await until(lambda: running() == 1)
    async with front.post(model="tiny") as answer:
        assert answer.status == 404
    assert list((await status_of(front))["pools"]) == ["main"]


async def test_a_stream_continues_through_a_settings_change(
    front: Front, engine: FakeEngine
) -> None:
    engine.pauses_after = 1
    async with front.post(stream=True) as answer:
        assert answer.status == 200
        given = settings(front)
        del given["pools"]["small"]
        given["pools"]["main"]["policy"] = "random"
        await front.gateway.reconfigure(given)
        engine.go_on.set()
        assert (await answer.read()).rstrip().endswith(b"[DONE]")


async def test_a_gateway_without_usable_settings_does_not_listen(front: Front) -> None:
    base = front.gateway.parts.in_force.fleet
    gateway = object.__new__(_Gateway)
    secrets = Secrets({KEY: TENANT}, SECRET, "redis://127.0.0.1:1/0")
    handles = front.handle
    await gateway.__init__(base, secrets, lambda pool: handles)  # type: ignore[misc]
    try:
        with pytest.raises(RuntimeError, match=r"no user_config\.$"):
            await gateway.check_health()
        await gateway.reconfigure({"name": "test", "pools": {}})
        with pytest.raises(RuntimeError, match="pools"):
            await gateway.check_health()
    finally:
        await Gateway.__del__(gateway)
    await asyncio.sleep(0)
