"""Every request that has ended is explained, with its outcome, whatever that was."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from deployments.gateway.gateway import Gateway
from router.redis.redis_client import AsyncRedis
from tests.deployments.gateway.admitting import BATCH, BUSY, FULL, SLO, recorded_explanations
from tests.deployments.gateway.endings import SECRET, WAYS, Ask, ask
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import OTHER_KEY, OTHER_TENANT, TENANT, Front, gateway_before
from tests.router.index_redis import client_of
from tests.router.redis_process import RedisProcess
from tests.waiting import until

ID = {"x-request-id": "mine"}
# What an explanation has, whether its request was placed, waited or was refused at once.
ALWAYS = {
    *("request_id", "tenant", "at", "path", "pool", "model", "policy", "admission", "replica"),
    *("outcome", "status", "error", "stage", "duration_s", "output_tokens", "last_replica"),
    *("prompt_tokens", "candidates", "candidates_not_shown", "phases", "budget", "segments"),
    *("slo_ttft_s", "slo_tpot_s", "slo_e2e_s", "tpot_s", "read_s", "lookup_s", "prompt_known"),
}
STATUS = {
    "ok": 200,
    "queue_full": 429,
    "no_replica": 503,
    "model_not_found": 404,
    "body_too_large": 413,
    "engine_error": 500,
    "engine_unavailable": 503,
    "deadline_exceeded": 504,
    "cancelled": 499,
}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
async def front(engine: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(engine, max_body_bytes=2000, request_timeout_s=60.0) as front:
        yield front


@pytest.fixture
async def redis(server: RedisProcess) -> AsyncIterator[AsyncRedis]:
    async with client_of(server) as client:
        await client.flushall()
        yield client


@pytest.mark.parametrize(("way", "outcome", "error"), WAYS, ids=[way.__name__ for way, *_ in WAYS])
async def test_each_kind_of_ended_request_is_explained_once_with_its_outcome(
    front: Front, engine: FakeEngine, way: Ask, outcome: str, error: str
) -> None:
    with recorded_explanations(front) as kept:
        await way(front, engine)
        await until(lambda: kept)
    (told,) = kept
    assert kept[0].keys() >= ALWAYS
    assert (told["tenant"], told["outcome"], told["error"]) == (TENANT, outcome, error or None)
    streams = way.__name__.endswith("in_its_stream")
    assert told["status"] == (200 if streams else STATUS.get(error or outcome, 400))
    assert SECRET not in str(told)


@pytest.mark.parametrize(("way", "outcome", "error"), WAYS, ids=[way.__name__ for way, *_ in WAYS])
async def test_the_explanation_of_a_placed_request_names_its_replica(
    front: Front, engine: FakeEngine, way: Ask, outcome: str, error: str
) -> None:
    with recorded_explanations(front) as kept:
        await way(front, engine)
        await until(lambda: kept)
    (told,) = kept
    was_sent = bool(engine.bodies) or error in ("engine_error", "engine_unavailable")
    assert told["last_replica"] == ("r1" if was_sent else None)
    if was_sent:
        assert [of["replica_id"] for of in told["candidates"]] == ["r1"]
        assert told["admission"]["verdict"] == "admitted"
        assert told["pool"] == "main"


async def test_a_request_that_runs_out_of_time_is_found_by_its_id(
    engine: FakeEngine, server: RedisProcess, redis: AsyncRedis
) -> None:
    engine.pauses_after = 0
    async with gateway_before(engine, redis_url=server.url) as front:
        async with front.post(headers={**ID, "x-antefix-timeout": "0.4"}) as answer:
            assert answer.status == 504
        told = await front.explanation_of(answer.headers)
        assert (told["outcome"], told["status"]) == ("deadline", 504)
        assert (told["error"], told["stage"]) == ("deadline_exceeded", "engine")
        assert (told["replica"], told["pool"], told["model"]) == ("r1", "main", MODEL)
        # the deadline counts from the headers, the duration from the whole body
        assert told["duration_s"] + told["phases"]["upload_s"] >= 0.399
        async with front.get("/antefix/decisions") as answer:
            assert (await answer.json())["decisions"] == [told]
        async with front.get("/antefix/decisions?only=failed") as answer:
            assert (await answer.json())["decisions"] == [told]


async def test_the_filter_for_failed_requests_lists_only_failed_requests(
    engine: FakeEngine, server: RedisProcess, redis: AsyncRedis
) -> None:
    async with gateway_before(engine, redis_url=server.url) as front:
        async with front.post() as answer:
            await front.explanation_of(answer.headers)
        async with front.get("/antefix/decisions?only=failed") as answer:
            assert (await answer.json())["decisions"] == []
        async with front.get("/antefix/decisions?only=late") as answer:
            error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, "only")
    assert "'late'" in error["message"] and "failed" in error["message"]


async def uploading(front: Front) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
    headers = {**front.headers, **ID, "content-type": "application/json", "content-length": "1000"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /v1/completions HTTP/1.1\r\nhost: here\r\n{head}\r\n{{".encode())
    return writer


async def test_a_client_that_leaves_while_it_uploads_is_explained(front: Front) -> None:
    state = front.gateway.server.state
    with recorded_explanations(front) as kept:
        writer = await uploading(front)
        await until(lambda: state.tasks)
        writer.close()
        await until(lambda: kept)
    (told,) = kept
    assert (told["request_id"], told["outcome"], told["stage"]) == ("mine", "cancelled", "upload")
    assert (told["pool"], told["candidates"]) == (None, [])


async def test_a_client_that_leaves_before_its_first_token_is_explained(
    front: Front, engine: FakeEngine
) -> None:
    engine.pauses_after = 0
    with recorded_explanations(front) as kept:
        client = asyncio.ensure_future(ask(front, stream=True, headers=ID))
        await until(lambda: engine.running == 1)
        client.cancel()
        await until(lambda: kept)
    (told,) = kept
    assert (told["outcome"], told["last_replica"]) == ("cancelled", "r1")


@pytest.mark.parametrize("way", ["deadline", "cancelled"])
async def test_a_request_that_ends_while_it_waits_for_its_turn_is_explained(way: str) -> None:
    engine, other = FakeEngine("r1"), FakeEngine("r2")
    async with gateway_before(engine, other, pool={"slo": SLO, "batch_queue": 2}) as front:
        front.sees_queues({engine: BUSY, other: FULL})
        with recorded_explanations(front) as kept:
            timeout = {"x-antefix-timeout": "0.3" if way == "deadline" else "60"}
            client = asyncio.ensure_future(ask(front, headers={**BATCH, **timeout}))
            await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
            if way == "cancelled":
                client.cancel()
            await until(lambda: kept)
    (told,) = kept
    assert (told["outcome"], told["stage"]) == (way, "turn")
    assert told["admission"]["verdict"] == "queued" and told["admission"]["priority"] == "batch"
    assert {of["replica_id"] for of in told["candidates"]} == {"r1", "r2"}
    assert told["last_replica"] is None
    await asyncio.gather(client, return_exceptions=True)


async def test_a_forbidden_request_is_explained_to_its_tenant(
    engine: FakeEngine, server: RedisProcess, redis: AsyncRedis
) -> None:
    async with gateway_before(engine, redis_url=server.url) as front:
        key = {"authorization": f"Bearer {OTHER_KEY}"}
        asked = {"x-antefix-policy": "random", "x-request-id": "theirs"}
        async with front.post(headers={**key, **asked}) as answer:
            assert answer.status == 403
        async with asyncio.timeout(30):
            while True:
                async with front.get("/antefix/requests/theirs", headers=key) as found:
                    told = await found.json()
                if found.status == 200:
                    break
                await asyncio.sleep(0.01)
    assert (told["tenant"], told["status"], told["outcome"]) == (OTHER_TENANT, 403, "invalid")


async def test_an_answer_that_its_gateway_ends_is_explained_before_the_gateway_has_gone(
    engine: FakeEngine, server: RedisProcess, redis: AsyncRedis
) -> None:
    engine.pauses_after = 1
    async with gateway_before(engine, redis_url=server.url, drain_timeout_s=1.0) as front:
        async with front.post(headers=ID, stream=True) as answer:
            await answer.content.readline()
            async with asyncio.timeout(60):
                await Gateway.__del__(front.gateway)
            await answer.read()
        async with gateway_before(redis_url=server.url) as other:
            told = await other.explanation_of({"x-request-id": "mine"})
    assert (told["outcome"], told["error"]) == ("failed", "gateway_stopped")
    assert told["replica"] == "r1"


async def test_a_long_running_request_is_found_by_id_and_not_listed_yet(
    engine: FakeEngine, server: RedisProcess, redis: AsyncRedis
) -> None:
    engine.pauses_after = 1
    async with gateway_before(engine, redis_url=server.url) as front:
        front.gateway.parts.explanations.under_way_s = 0.05
        async with front.post(headers=ID, stream=True) as answer:
            told = await front.explanation_of(answer.headers)
            assert (told["outcome"], told["status"]) == (None, None)
            # on busy cores it may have been explained before its first token
            assert told["stage"] in ("placement", "engine", "answer")
            async with front.get("/antefix/decisions") as listed:
                assert (await listed.json())["decisions"] == []
        async with asyncio.timeout(60):
            while (await front.explanation_of(answer.headers))["outcome"] != "cancelled":  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_the_explanation_of_a_long_running_request_gets_its_outcome_at_the_end(
    engine: FakeEngine, front: Front
) -> None:
    front.gateway.parts.explanations.under_way_s = 0.05
    engine.pauses_after = 1
    with recorded_explanations(front) as kept:
        async with front.post(headers=ID, stream=True) as answer:
            await until(lambda: kept)
            engine.go_on.set()
            await answer.read()
        await until(lambda: kept[-1]["outcome"])
    assert kept[0]["outcome"] is None
    assert kept[-1]["duration_s"] > kept[0]["duration_s"]


async def test_a_failed_explanation_still_records_the_outcome(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError(SECRET)

    monkeypatch.setattr(front.pool.reporter, "decided", fails)
    with recorded_explanations(front) as kept:
        async with front.post(headers=ID) as answer:
            assert answer.status == 200
        await until(lambda: kept)
    (told,) = kept
    assert (told["outcome"], told["status"], told["replica"]) == ("ok", 200, "r1")


async def test_a_request_with_a_wrong_key_is_not_explained(front: Front) -> None:
    with recorded_explanations(front) as kept:
        wrong = {"authorization": "Bearer sk-wrong"}
        async with front.post(headers=wrong) as answer:
            assert answer.status == 401
        async with front.post() as answer:
            assert isinstance(answer, aiohttp.ClientResponse)
        await until(lambda: kept)
    assert [told["outcome"] for told in kept] == ["ok"]
