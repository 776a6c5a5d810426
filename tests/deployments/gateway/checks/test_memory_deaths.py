"""A request that exhausts a replica's memory ends one replica, and its tenant waits its turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse

from router.board.replica_death import KEPT_S, OTHER_CAUSE, OUT_OF_MEMORY, death_key
from router.redis.redis_client import connect
from router.redis.signature import Signer, signed_bytes
from tests.fakes.engine import SECRET, FakeEngine
from tests.fakes.front import NO_REDIS, OTHER_KEY, REDIS_NAME, TENANT, Front
from tests.fakes.limited_front import limited
from tests.sentences import assert_sentences
from tests.waiting import until

LIMITS = {"limits": {"concurrent_requests": 8}}
OTHER = {"authorization": f"Bearer {OTHER_KEY}"}


@asynccontextmanager
async def pair(redis_url: str) -> AsyncIterator[tuple[Front, FakeEngine, FakeEngine]]:
    """A gateway before two engines, of which it prefers the first."""
    first, second = FakeEngine("r0"), FakeEngine("r1")
    async with limited(redis_url, first, LIMITS, [second]) as front:
        front.sees_queues({first: 0, second: 10**6})
        yield front, first, second


async def report(redis_url: str, replica_id: str, cause: bytes, secret: str = SECRET) -> None:
    """As the watchdog of a replica does."""
    key = death_key(REDIS_NAME, replica_id)
    async with connect(redis_url, decode=False) as redis:
        await redis.set(key, signed_bytes(Signer(secret), key, cause), ex=KEPT_S)


async def code_of(front: Front, headers: dict[str, str] | None = None, **body: Any) -> str:
    async with front.post(headers=headers, **body) as answer:
        if answer.status == 200:
            return ""
        error = (await answer.json())["error"]
        assert_sentences(error["message"])
        return str(error["code"])


async def is_held(front: Front, engine: FakeEngine) -> bool:
    """Whether the tenant's second request at once is rejected."""
    engine.pauses_after, engine.go_on = 0, asyncio.Event()
    first = asyncio.create_task(code_of(front, max_tokens=3))
    await until(lambda: engine.running)
    second = asyncio.create_task(code_of(front, max_tokens=2))
    await until(lambda: second.done() or engine.running == 2)
    engine.go_on.set()
    codes = await first, await second
    assert codes[0] == ""
    return codes[1] == "rate_limit_exceeded"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_request_that_ran_a_replica_out_of_memory_is_not_retried(
    redis_url: str, streams: bool
) -> None:
    async with pair(redis_url) as (front, first, second):
        await report(redis_url, "r0", OUT_OF_MEMORY)
        first.dies_after = 0
        assert await code_of(front, stream=streams) == "engine_out_of_memory"
        assert not second.bodies
        # nor is it when its client sends it again
        assert await code_of(front, stream=streams) == "engines_lost"
        assert not second.bodies


async def test_a_request_is_not_retried_after_an_engine_reports_no_memory_for_it(
    redis_url: str,
) -> None:
    async with pair(redis_url) as (front, first, second):
        message = "CUDA out of memory. Tried to allocate 20.00 GiB."
        first.answers = JSONResponse({"error": {"message": message, "code": 500}}, 500)
        assert await code_of(front) == "engine_out_of_memory"
        assert not second.bodies


@pytest.mark.parametrize("cause", ["other", "unknown", "forged"])
async def test_a_request_whose_replica_died_of_another_cause_is_tried_again(
    redis_url: str, cause: str
) -> None:
    async with pair(redis_url) as (front, first, second):
        if cause == "other":
            await report(redis_url, "r0", OTHER_CAUSE)
        if cause == "forged":
            await report(redis_url, "r0", OUT_OF_MEMORY, secret="another")
        first.dies_after = 0
        assert await code_of(front) == ""
        assert len(second.bodies) == 1


async def test_without_redis_a_lost_request_is_tried_again() -> None:
    first, second = FakeEngine("r0"), FakeEngine("r1")
    async with limited(NO_REDIS, first, LIMITS, [second]) as front:
        front.sees_queues({first: 0, second: 10**6})
        first.dies_after = 0
        assert await code_of(front, OTHER) == ""
        assert len(second.bodies) == 1


async def test_a_tenant_that_ran_a_replica_out_of_memory_gets_one_request_at_a_time(
    redis_url: str,
) -> None:
    async with pair(redis_url) as (front, first, second):
        await report(redis_url, "r0", OUT_OF_MEMORY)
        first.dies_after = 0
        assert not front.gateway.parts.fatal.is_held(TENANT)
        await code_of(front, user="large")
        assert front.gateway.parts.fatal.is_held(TENANT)
        assert not front.gateway.parts.fatal.is_held("other")
        front.sees(second)
        assert await is_held(front, second)
        metrics = await front.metrics()
        assert metrics["antefix_tenants_held",] == 1
        async with front.get("/antefix/status") as status:
            tenants = {each["tenant"]: each for each in (await status.json())["tenants"]}
        assert tenants[TENANT]["held"]


async def test_a_tenant_whose_replica_died_of_another_cause_is_not_throttled(
    redis_url: str,
) -> None:
    async with pair(redis_url) as (front, first, second):
        await report(redis_url, "r0", OTHER_CAUSE)
        first.dies_after = 0
        assert await code_of(front) == ""
        front.sees(second)
        assert not await is_held(front, second)


async def test_no_tenant_is_throttled_if_two_were_using_the_replica(redis_url: str) -> None:
    async with pair(redis_url) as (front, first, _):
        first.pauses_after = 1
        async with front.post(headers=OTHER, stream=True, max_tokens=3) as others:
            await others.content.readuntil(b"\n\n")
            await report(redis_url, "r0", OUT_OF_MEMORY)
            first.dies_of = "user"
            assert await code_of(front, user="large") == "engine_out_of_memory"
            first.go_on.set()
            await others.read()
        assert others.status == 200
        fatal = front.gateway.parts.fatal
        assert not fatal.is_held(TENANT) and not fatal.is_held("other")


async def test_a_tenant_is_throttled_if_its_request_was_alone_in_two_lost_engines(
    redis_url: str,
) -> None:
    async with pair(redis_url) as (front, first, second):
        first.dies_after = second.dies_after = 0
        assert await code_of(front, user="poison") == "engines_lost"
        fatal = front.gateway.parts.fatal
        assert fatal.is_held(TENANT) and not fatal.is_held("other")
