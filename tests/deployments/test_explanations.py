"""Explanations: any gateway tells its tenant, nobody else; Redis' troubles cost them alone."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments import explanations
from deployments.explanations import EXPLANATION_TTL_S, WAITING_AT_MOST, Explanations
from deployments.local.ports import free_ports
from router.redis_client import REDIS_FAILURES, AsyncRedis, connect
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import FLEET, NO_REDIS, OTHER_KEY, Front, gateway_before
from tests.router.index_redis import client_of, control
from tests.router.redis_process import RedisProcess, running
from tests.waiting import cancelled, until

TOLD = {"replica": "r1", "candidates": [{"replica_id": "r1", "score": 0.5}]}
# No number that is in an explanation by chance.
TOKEN = 4294901760
BACK_WITHIN_S = 10.0


@pytest.fixture
async def redis(server: RedisProcess) -> AsyncIterator[AsyncRedis]:
    async with client_of(server) as client:
        await client.flushall()
        yield client


@asynccontextmanager
async def kept_at(url: str) -> AsyncIterator[Explanations]:
    """A gateway process's explanations; their task may not end by itself."""
    client = connect(url, decode=False)
    kept = Explanations(client, FLEET)
    task = asyncio.create_task(kept.run())
    try:
        yield kept
        assert not task.done()
    finally:
        await cancelled(task)
        await client.aclose()


async def found(kept: Explanations, tenant: str, request_id: str) -> dict[str, Any]:
    """What is told, once it is."""
    async with asyncio.timeout(BACK_WITHIN_S):
        while (told := await kept.find(tenant, request_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return told


async def test_any_gateway_process_tells_what_one_has_kept(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with kept_at(server.url) as one, kept_at(server.url) as other:
        one.keep("red", "id-1", TOLD)
        assert await found(other, "red", "id-1") == TOLD


async def test_another_tenant_is_told_nothing(redis: AsyncRedis, server: RedisProcess) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red", "id-1", TOLD)
        await found(kept, "red", "id-1")
        assert await kept.find("blue", "id-1") is None


async def test_a_tenant_named_like_the_start_of_another_is_told_nothing_of_it(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red:team", "id-1", TOLD)
        await found(kept, "red:team", "id-1")
        assert await kept.find("red", "team:id-1") is None


async def test_an_explanation_goes_after_its_time(redis: AsyncRedis, server: RedisProcess) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red", "id-1", TOLD)
        await found(kept, "red", "id-1")
        (key,) = await redis.keys()
        assert 0 < await redis.ttl(key) <= EXPLANATION_TTL_S


async def test_what_redis_cannot_take_is_dropped_and_counted() -> None:
    async with kept_at(NO_REDIS) as kept:
        for number in range(3):
            kept.keep("red", str(number), TOLD)
        await until(lambda: kept.dropped == 3)
        with pytest.raises(REDIS_FAILURES):
            await kept.find("red", "1")


async def test_a_full_queue_drops_and_counts() -> None:
    kept = Explanations(connect(NO_REDIS, decode=False), FLEET)  # nobody writes
    for number in range(WAITING_AT_MOST + 2):
        kept.keep("red", str(number), TOLD)
    assert kept.dropped == 2


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_after_an_outage_explanations_are_kept_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (port,) = free_ports(1)
    with ExitStack() as servers:
        server = servers.enter_context(running(tmp_path, port, f"port {port}\n"))
        async with kept_at(server.url) as kept:
            kept.keep("red", "before", TOLD)
            await found(kept, "red", "before")
            monkeypatch.setattr(explanations, "REDIS_TIMEOUT_S", 0.1)
            os.kill(server.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            kept.keep("red", "lost", TOLD)
            await until(lambda: kept.dropped == 1)
            if how == "killed":
                server = servers.enter_context(running(tmp_path, port, f"port {port}\n"))
            else:
                os.kill(server.process.pid, signal.SIGCONT)
            monkeypatch.setattr(explanations, "REDIS_TIMEOUT_S", BACK_WITHIN_S)

            def again() -> bool:
                kept.keep("red", "after", TOLD)
                return redis_has(server, "after")

            await until(again, BACK_WITHIN_S)


def redis_has(server: RedisProcess, request_id: str) -> bool:
    with control(server) as client:
        names: Any = client.keys("*")
    return any(request_id.encode() in name for name in names)


@pytest.fixture
async def front(redis: AsyncRedis, server: RedisProcess) -> AsyncIterator[Front]:
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    async with gateway_before(*engines, redis_url=server.url, lookup_budget_ms=1000.0) as front:
        await until(lambda: front.router._renderer.prompt_tokens)
        yield front


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    error = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status, error["code"]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_explanation_has_every_candidate_and_its_score(front: Front, stream: bool) -> None:
    async with front.post("/v1/completions", prompt=[*range(40)], stream=stream) as answer:
        replica = answer.headers["x-antefix-replica"]
        await answer.read()
    told = await front.explanation_of(answer.headers)
    assert (told["replica"], told["policy"], told["pool"]) == (replica, "prefix", "main")
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["prompt_known"] and told["index_answered"] and told["segments"] == 2
    assert told["prompt_tokens"] == {"counted": 40, "confirmed": 40}
    assert told["cached_tokens"] == {"predicted": 0, "in_index": 0, "confirmed": 0}
    assert sorted(c["replica_id"] for c in told["candidates"]) == ["r0", "r1"]
    assert all(c["score"] > 0 and c["predicted_ttft"] > 0 for c in told["candidates"])


async def test_another_gateway_process_tells_the_same(front: Front, server: RedisProcess) -> None:
    async with front.post() as answer:
        request_id = answer.headers["x-request-id"]
    told = await front.explanation_of(answer.headers)
    async with (
        gateway_before(redis_url=server.url) as other,
        other.get(f"/antefix/requests/{request_id}") as again,
    ):
        assert again.status == 200
        assert await again.json() == told


async def test_another_tenants_request_is_a_404(front: Front) -> None:
    async with front.post(headers={"x-request-id": "mine"}) as answer:
        await front.explanation_of(answer.headers)
    key = {"authorization": f"Bearer {OTHER_KEY}"}
    async with front.get("/antefix/requests/mine", headers=key) as told:
        assert await error_of(told) == (404, "unknown_request")


async def test_a_request_nobody_knows_is_a_404_that_says_where_ids_are(front: Front) -> None:
    async with front.get("/antefix/requests/no-such") as told:
        assert await error_of(told) == (404, "unknown_request")
        message = (await told.json())["error"]["message"]
    assert "no-such" in message
    assert "x-request-id" in message


async def test_nothing_is_explained_without_a_key(front: Front) -> None:
    async with front.http.get(front.url + "/antefix/requests/any") as told:
        assert await error_of(told) == (401, "missing_api_key")


async def test_no_prompt_and_no_token_is_in_an_explanation_or_in_redis(
    front: Front, server: RedisProcess
) -> None:
    text = "confidential " * 40
    for asked in ({"prompt": text}, {"prompt": [TOKEN] * 40}):
        async with front.post("/v1/completions", **asked) as answer:
            assert answer.status == 200
        told = await front.explanation_of(answer.headers)
        assert told["segments"] > 0
        assert "confidential" not in str(told)
        assert str(TOKEN) not in str(told)
    with control(server) as client:
        names: Any = client.keys("*")
        dumps: Any = b"".join(client.dump(name) for name in names)  # type: ignore[misc]
    assert b"confidential" not in b"".join(names) + dumps


async def test_without_redis_a_request_is_served_and_its_explanation_is_a_503() -> None:
    async with gateway_before(FakeEngine()) as front:
        async with front.post(headers={"x-request-id": "mine"}) as answer:
            assert answer.status == 200
        async with front.get("/antefix/requests/mine") as told:
            assert await error_of(told) == (503, "no_redis")
            assert told.headers["retry-after"] == "1"
        await until(lambda: front.gateway._explanations.dropped == 1)
