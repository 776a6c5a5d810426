"""Any gateway returns an explanation, only to its tenant; Redis' troubles cost explanations
alone."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from deployments.gateway.api.limits import DECISIONS, EXPLANATION_TTL_S
from deployments.gateway.record import explanations
from deployments.gateway.record.explanations import (
    DECISIONS_TTL_S,
    WAITING_AT_MOST,
    Explanations,
)
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import (
    FLEET,
    NO_REDIS,
    OTHER_KEY,
    OTHER_TENANT,
    TENANT,
    Front,
    gateway_before,
)
from tests.ports import free_ports
from tests.router.index_redis import client_of, control
from tests.router.redis_process import RedisProcess, running
from tests.sentences import assert_sentences
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
async def kept_at(url: str, for_operators: bool = False) -> AsyncIterator[Explanations]:
    """A gateway process's explanations; their task may not end by itself."""
    client = connect(url, decode=False)
    kept = Explanations(client, FLEET, for_operators)
    task = asyncio.create_task(kept.run())
    try:
        yield kept
        assert not task.done()
    finally:
        await cancelled(task)
        await client.aclose()


async def found(kept: Explanations, tenant: str, request_id: str) -> dict[str, Any]:
    """The explanation, once there is one."""
    async with asyncio.timeout(BACK_WITHIN_S):
        while (told := await kept.find(tenant, request_id, loads=True)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return told


async def test_any_gateway_process_returns_an_explanation_that_another_has_stored(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with kept_at(server.url) as one, kept_at(server.url) as other:
        one.keep("red", "id-1", TOLD)
        assert await found(other, "red", "id-1") == TOLD


async def test_another_tenant_gets_no_explanation(redis: AsyncRedis, server: RedisProcess) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red", "id-1", TOLD)
        await found(kept, "red", "id-1")
        assert await kept.find("blue", "id-1") is None


async def test_a_tenant_named_like_the_start_of_another_gets_no_explanation(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red:team", "id-1", TOLD)
        await found(kept, "red:team", "id-1")
        assert await kept.find("red", "team:id-1") is None


async def test_an_explanation_expires(redis: AsyncRedis, server: RedisProcess) -> None:
    async with kept_at(server.url) as kept:
        kept.keep("red", "id-1", TOLD)
        await found(kept, "red", "id-1")
        (key,) = await redis.keys("*requests:*")
        assert 0 < await redis.ttl(key) <= EXPLANATION_TTL_S
        (key,) = await redis.keys("*decisions:*")
        assert 0 < await redis.ttl(key) <= DECISIONS_TTL_S


async def ids_of(kept: Explanations, tenant: str | None, limit: int = DECISIONS) -> list[str]:
    return [told["request_id"] for told in json.loads(await kept.latest(tenant, limit))]


async def test_any_gateway_returns_the_last_hundred_of_a_tenant_newest_first(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    asked = [f"id-{number}" for number in range(DECISIONS + 30)]
    async with kept_at(server.url) as one, kept_at(server.url) as other:
        for request_id in asked:
            one.keep("red", request_id, {"request_id": request_id})
        other.keep("red:team", "theirs", {"request_id": "theirs"})
        await found(one, "red", asked[-1])
        await found(one, "red:team", "theirs")
        assert await ids_of(other, "red") == asked[::-1][:DECISIONS]
        assert await ids_of(other, "red", 2) == asked[::-1][:2]
        assert await ids_of(other, "red:team") == ["theirs"]
        assert await ids_of(other, "blue") == []
        assert await ids_of(other, None) == []


async def test_explanations_of_all_tenants_are_also_listed_together_for_operators(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with kept_at(server.url, for_operators=True) as kept:
        for tenant in ("red", "blue"):
            kept.keep(tenant, tenant, {"request_id": tenant})
            await found(kept, tenant, tenant)
        assert await ids_of(kept, None) == ["blue", "red"]
        assert await ids_of(kept, "red") == ["red"]


async def test_explanations_that_redis_cannot_take_are_dropped_and_counted() -> None:
    async with kept_at(NO_REDIS) as kept:
        for number in range(3):
            kept.keep("red", str(number), TOLD)
        await until(lambda: kept.dropped == 3)
        with pytest.raises(REDIS_FAILURES):
            await kept.find("red", "1")


async def test_a_full_queue_drops_and_counts() -> None:
    kept = Explanations(connect(NO_REDIS, decode=False), FLEET)  # nothing is written
    for number in range(WAITING_AT_MOST + 2):
        kept.keep("red", str(number), TOLD)
    assert kept.dropped == 2


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_explanations_are_stored_again_after_an_outage(tmp_path: Path, how: str) -> None:
    (port,) = free_ports(1)
    with ExitStack() as servers:
        server = servers.enter_context(running(tmp_path, port, f"port {port}\n"))
        async with kept_at(server.url) as kept:
            kept.keep("red", "before", TOLD)
            await found(kept, "red", "before")
            kept.redis_timeout_s = 0.1
            os.kill(server.process.pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            kept.keep("red", "lost", TOLD)
            await until(lambda: kept.dropped == 1)
            if how == "killed":
                server = servers.enter_context(running(tmp_path, port, f"port {port}\n"))
            else:
                os.kill(server.process.pid, signal.SIGCONT)
            kept.redis_timeout_s = BACK_WITHIN_S

            def again() -> bool:
                kept.keep("red", "after", TOLD)
                return redis_has(server, "after")

            await until(again, BACK_WITHIN_S)


def redis_has(server: RedisProcess, request_id: str) -> bool:
    with control(server) as client:
        names: Any = client.keys("*requests:*")
        return any(client.hexists(name, request_id) for name in names)


@pytest.fixture(params=[{TENANT: {"operator": True}}], ids=["an operator"])
async def front(
    request: pytest.FixtureRequest, redis: AsyncRedis, server: RedisProcess
) -> AsyncIterator[Front]:
    engines = FakeEngine("r0"), FakeEngine("r1")
    for engine in engines:
        engine.renderer = facts()
    async with gateway_before(
        *engines, redis_url=server.url, lookup_budget_ms=1000.0, tenants=request.param
    ) as front:
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        yield front


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    error = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert_sentences(error["message"])
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


async def test_another_gateway_process_returns_the_same_explanation(
    front: Front, server: RedisProcess
) -> None:
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


async def test_an_unknown_request_is_a_404_that_says_where_ids_are(front: Front) -> None:
    async with front.get("/antefix/requests/no-such") as told:
        assert await error_of(told) == (404, "unknown_request")
        message = (await told.json())["error"]["message"]
    assert "no-such" in message
    assert "x-request-id" in message


@pytest.mark.parametrize("path", ["/antefix/requests/any", "/antefix/decisions"])
async def test_no_explanation_is_returned_without_a_key(front: Front, path: str) -> None:
    async with front.http.get(front.url + path) as told:
        assert await error_of(told) == (401, "missing_api_key")


@pytest.mark.parametrize("front", [{}], indirect=True, ids=["no operator"])
async def test_a_key_sees_only_the_decisions_of_its_tenant(front: Front) -> None:
    async with front.post(headers={"x-request-id": "mine"}) as answer:
        told = await front.explanation_of(answer.headers)
    assert (told["tenant"], told["slo_ttft_s"]) == (TENANT, None)
    async with front.get("/antefix/decisions") as answer:
        mine = {"tenant": TENANT, "operator": False, "decisions": [told]}
        assert await answer.json() == mine
    key = {"authorization": f"Bearer {OTHER_KEY}"}
    async with front.get("/antefix/decisions", headers=key) as answer:
        theirs = {"tenant": OTHER_TENANT, "operator": False, "decisions": []}
        assert await answer.json() == theirs


async def test_an_operator_sees_all_decisions(server: RedisProcess, redis: AsyncRedis) -> None:
    tenants = {TENANT: {"operator": True}, OTHER_TENANT: {"operator": True}}
    async with gateway_before(FakeEngine(), redis_url=server.url, tenants=tenants) as front:
        async with front.post() as answer:
            told = await front.explanation_of(answer.headers)
        key = {"authorization": f"Bearer {OTHER_KEY}"}
        async with front.get("/antefix/decisions", headers=key) as answer:
            all_of_them = {"tenant": OTHER_TENANT, "operator": True, "decisions": [told]}
            assert await answer.json() == all_of_them


async def test_an_operator_may_ask_for_the_request_of_another_tenant(
    server: RedisProcess, redis: AsyncRedis
) -> None:
    async with gateway_before(
        FakeEngine(), redis_url=server.url, tenants={OTHER_TENANT: {"operator": True}}
    ) as front:
        async with front.post() as answer:
            told = await front.explanation_of(answer.headers)
        path = f"/antefix/requests/{told['request_id']}"
        async with front.get(path, headers={"authorization": f"Bearer {OTHER_KEY}"}) as answer:
            assert answer.status == 200
            assert (await answer.json())["tenant"] == TENANT


async def test_an_explanation_shows_the_best_candidates_and_the_one_that_served(
    server: RedisProcess, redis: AsyncRedis
) -> None:
    engines = [FakeEngine(f"r{i}") for i in range(12)]
    async with gateway_before(*engines, redis_url=server.url) as front, front.post() as answer:
        told = await front.explanation_of(answer.headers)
    assert len(told["candidates"]) == 8 and told["candidates_not_shown"] == 4
    assert told["replica"] in {of["replica_id"] for of in told["candidates"]}


async def test_dropped_explanations_are_counted_by_the_next_written_one(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanations, "BYTES_PER_S", 4000)
    monkeypatch.setattr(explanations, "BURST_S", 1.0)
    async with kept_at(server.url) as kept:
        refused = {"outcome": "rejected", "pool": "main", "reason": "x" * 500}
        for request in range(100):
            kept.keep("red", f"refused-{request}", refused)
        await until(lambda: kept.dropped >= 90)
        for outcome in ("ok", "failed"):
            kept.keep("blue", outcome, {"outcome": outcome, "pool": "main"})
            assert "stands_for" not in await found(kept, "blue", outcome)
        sent = 100

        async def counted() -> int:
            nonlocal sent
            kept.keep("red", "last", refused)
            sent += 1
            await asyncio.sleep(0.5)
            listed = json.loads(await kept.latest("red"))
            return sum(told.get("stands_for", 1) for told in listed)

        async with asyncio.timeout(BACK_WITHIN_S):
            while await counted() < sent:
                pass
        assert await counted() <= sent


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.5", "many", "", "9" * 5000])
async def test_an_invalid_limit_is_a_400_that_names_the_valid_range(
    front: Front, limit: str
) -> None:
    async with front.get(f"/antefix/decisions?limit={limit}") as answer:
        assert await error_of(answer) == (400, "invalid_limit")
        assert "from 1 to 100" in (await answer.json())["error"]["message"]


async def test_the_limit_bounds_the_returned_decisions(front: Front) -> None:
    for request_id in ("first", "second"):
        async with front.post(headers={"x-request-id": request_id}) as answer:
            await front.explanation_of(answer.headers)
    async with front.get("/antefix/decisions?limit=1") as answer:
        (told,) = (await answer.json())["decisions"]
        assert told["request_id"] == "second"


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
        async with front.get("/antefix/decisions") as answer:
            listed = await answer.text()
        assert told["request_id"] in listed
        assert "confidential" not in listed
        assert str(TOKEN) not in listed
    with control(server) as client:
        names: Any = client.keys("*")
        dumps: Any = b"".join(client.dump(name) for name in names)  # type: ignore[misc]
    assert b"confidential" not in b"".join(names) + dumps


async def test_without_redis_a_request_is_served_and_its_explanation_is_a_503() -> None:
    async with gateway_before(FakeEngine()) as front:
        async with front.post(headers={"x-request-id": "mine"}) as answer:
            assert answer.status == 200
        for path in ("/antefix/requests/mine", "/antefix/decisions"):
            async with front.get(path) as told:
                assert await error_of(told) == (503, "no_redis")
                assert told.headers["retry-after"] == "1"
        await until(lambda: front.gateway.parts.explanations.dropped == 1)
