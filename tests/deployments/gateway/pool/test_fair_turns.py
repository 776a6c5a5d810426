"""Tenants that share a pool that is full: requests wait for their turns in a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec
import pytest

from autoscaling.admission.pool_scheduler import PoolScheduler
from deployments.gateway.inquiries.status import admission_status
from tests.deployments.gateway.admitting import BUSY, FREE, error_of, recorded_explanations
from tests.fakes.engine import FakeEngine
from tests.fakes.front import OTHER_KEY, OTHER_TENANT, TENANT, Front, gateway_before
from tests.waiting import until

SLO = {"interactive": {"ttft_s": 60.0}}
LATER = count(10**6)
OTHER = {"authorization": f"Bearer {OTHER_KEY}"}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0", limit=16)


@pytest.fixture
async def front(engine: FakeEngine) -> AsyncIterator[Front]:
    """Both tenants have been served a moment ago."""
    pool = {"slo": SLO, "max_queued_requests": 3}
    async with gateway_before(engine, pool=pool) as front:
        for headers in ({}, OTHER):
            assert (await answered(front, headers)).status == 200
        yield front


def has_queued(front: Front, engine: FakeEngine, tokens: int) -> None:
    """The engine reports it, later than what it reported with its answers."""
    load = msgspec.structs.replace(engine.load(tokens), sequence=next(LATER))
    front.pool.scheduler.board.update([load])


async def answered(front: Front, headers: dict[str, str]) -> aiohttp.ClientResponse:
    async with front.post(headers=headers) as answer:
        await answer.read()
        return answer  # type: ignore[no-any-return]


async def waiting(front: Front, headers: dict[str, str]) -> asyncio.Future[Any]:
    """A request that has come to the gateway's queue."""
    room = front.pool.scheduler.admission.interactive
    before = set(room)
    asked = asyncio.ensure_future(answered(front, headers))
    await until(lambda: set(room) - before)
    return asked


async def test_a_later_request_of_another_tenant_goes_before_a_flood(
    front: Front, engine: FakeEngine
) -> None:
    scheduler, order = front.pool.scheduler, []

    def next_turn() -> Any:
        if (turn := PoolScheduler.next_turn(scheduler)) is not None:
            order.append(turn[0].tenant)
        return turn

    scheduler.admission.shares.charge(TENANT, 100.0)
    has_queued(front, engine, BUSY)
    with (
        patch.object(scheduler, "next_turn", next_turn),
        recorded_explanations(front) as explanations,
    ):
        asked = [await waiting(front, headers) for headers in ({}, {}, OTHER)]
        metrics = await front.metrics()
        assert metrics["antefix_interactive_queued_requests",] == 3
        assert metrics["antefix_batch_queued_requests",] == 0
        told = admission_status(front.pool)
        assert told["queued_by_tenant"] == {TENANT: 2, OTHER_TENANT: 1}
        has_queued(front, engine, FREE)
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        await until(lambda: len(explanations) == 3)
    assert order == [OTHER_TENANT, TENANT, TENANT]
    assert all(one["phases"]["queued_s"] > 0 for one in explanations)
    assert (await front.metrics())["antefix_admissions_total", "interactive", "queued"] == 3


async def test_a_full_queue_rejects_the_newest_request_of_the_tenant_with_the_most_queued(
    front: Front, engine: FakeEngine
) -> None:
    has_queued(front, engine, BUSY)
    with recorded_explanations(front) as explanations:
        asked = [await waiting(front, {}) for _ in range(3)]
        async with front.post() as answer:
            assert answer.status == 429
        other = await waiting(front, OTHER)
        refused = await asked[2]
        assert refused.status == 429
        assert int(refused.headers["retry-after"]) >= 1
        error = await error_of(refused)
        assert error["code"] == "over_capacity"
        assert "this tenant has the most requests in it" in error["message"]
        has_queued(front, engine, FREE)
        for served in (asked[0], asked[1], other):
            assert (await served).status == 200
    verdicts = [one["admission"]["verdict"] for one in explanations]
    assert verdicts.count("rejected") == 2
    demand = front.pool.scheduler.demand
    assert (demand.arrived, demand.rejected) == (2 + 5, 2)


async def test_requests_of_the_only_tenant_do_not_queue(engine: FakeEngine) -> None:
    async with gateway_before(engine, pool={"slo": SLO}) as front:
        has_queued(front, engine, BUSY)
        assert (await answered(front, {})).status == 200


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind(
    front: Front, engine: FakeEngine
) -> None:
    has_queued(front, engine, BUSY)
    asked = await waiting(front, {})
    asked.cancel()
    await until(lambda: not front.pool.is_waited_for)
    assert not len(front.pool.scheduler.admission.interactive)
