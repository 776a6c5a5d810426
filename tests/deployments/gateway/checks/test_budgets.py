"""What tenants may use, through a real gateway and a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, NO_REDIS, OTHER_KEY, TENANT, Front
from tests.fakes.limited_front import PATIENCE_S, charges_of, limited
from tests.sentences import assert_sentences
from tests.waiting import until


async def ask_chat(
    front: Front, headers: dict[str, str] | None = None, **body: Any
) -> tuple[int, str, Mapping[str, str]]:
    async with front.post(headers=headers, **body) as answer:
        told = await answer.json()
        if answer.status == 200:
            return 200, "", answer.headers
        assert_sentences(told["error"]["message"])
        return answer.status, told["error"]["code"], answer.headers


async def test_a_tenant_gets_its_budget_and_the_time_of_its_reset(redis_url: str) -> None:
    limits = {"limits": {"requests_per_minute": 2}}
    async with limited(redis_url, FakeEngine(), limits) as front:
        status, _, headers = await ask_chat(front)
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == "1"
        assert headers["x-ratelimit-reset-requests"] == "1m2s"
        assert "x-ratelimit-limit-tokens" not in headers
        assert (await ask_chat(front))[0] == 200
        status, code, headers = await ask_chat(front)
        assert (status, code) == (429, "rate_limit_exceeded")
        assert 50 <= int(headers["retry-after"]) <= 62
        assert headers["x-ratelimit-remaining-requests"] == "0"
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        assert (await ask_chat(front, other))[0] == 200


async def test_a_length_that_is_left_to_vllm_makes_no_reservation_smaller(redis_url: str) -> None:
    """`max_model_len: -1` is vLLM's word for the longest that fits."""
    limits = {"limits": {"tokens_per_minute": 1000}}
    pool = {"engine_args": {"max_model_len": -1}}
    async with limited(redis_url, FakeEngine(), limits, pool_settings=pool) as front:
        status, _, headers = await ask_chat(front, max_tokens=300)
        assert status == 200
        assert int(headers["x-ratelimit-remaining-tokens"]) <= 700


async def test_tokens_that_were_not_used_are_available_again(redis_url: str) -> None:
    """The engine confirms a few of the hundreds that a request might have used."""
    limits = {"limits": {"tokens_per_minute": 1000}}
    engine = FakeEngine()
    engine.prompt_cache = lambda fields: (10, 0)
    async with limited(redis_url, engine, limits) as front:
        for count in range(5):
            status, _, headers = await ask_chat(front, max_tokens=4)
            assert status == 200
            left = int(headers["x-ratelimit-remaining-tokens"])
            assert left <= 1000 - 500 - 14 * count
            await until(lambda: not front.gateway.parts.budgets.under_way)
            await asyncio.sleep(0.05)


async def test_a_request_above_the_limit_of_a_minute_gets_no_retry_after(redis_url: str) -> None:
    limits = {"limits": {"tokens_per_minute": 900}}
    async with limited(redis_url, FakeEngine(), limits) as front:
        status, code, headers = await ask_chat(front, max_tokens=600)
        assert (status, code) == (400, "tokens_above_limit")
        assert "retry-after" not in headers


async def test_a_model_has_separate_limits(redis_url: str) -> None:
    limits = {
        "model_limits": {"small": {"requests_per_minute": 1}, "x": {"requests_per_minute": 9}}
    }
    async with limited(redis_url, FakeEngine(), limits) as front:
        assert (await ask_chat(front))[0] == 200
        assert (await ask_chat(front))[1] == "rate_limit_exceeded"


async def test_concurrent_requests_are_limited(redis_url: str) -> None:
    engine = FakeEngine()
    engine.pauses_after = 0
    async with limited(redis_url, engine, {"limits": {"concurrent_requests": 1}}) as front:
        first = asyncio.create_task(ask_chat(front))
        await until(lambda: engine.running, PATIENCE_S)
        assert (await ask_chat(front))[1] == "rate_limit_exceeded"
        engine.go_on.set()
        assert (await first)[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            while (await ask_chat(front))[0] != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_the_request_of_a_client_that_left_no_longer_counts_as_running(
    redis_url: str,
) -> None:
    engine = FakeEngine()
    engine.pauses_after = 1
    async with limited(redis_url, engine, {"limits": {"concurrent_requests": 1}}) as front:
        async with front.post(stream=True) as answer:
            assert answer.status == 200
        await until(lambda: not front.gateway.parts.budgets.under_way, PATIENCE_S)


@pytest.mark.parametrize("tells_ids", [True, False])
@pytest.mark.parametrize(
    ("interval", "made", "events"),
    [(1, 5, 6), (40, 120, 5), (120, 120, 3), (40, 79, 3), (99, 60, 2)],
)
async def test_a_client_that_leaves_a_stream_pays_for_all_that_was_generated(
    redis_url: str,
    tells_ids: bool,
    interval: int,
    made: int,
    events: int,
) -> None:
    engine = FakeEngine()
    engine.offers_resumable, engine.pauses_after = tells_ids, made
    engine.prompt_cache = lambda fields: (10, 0)
    limits = {"limits": {"tokens_per_minute": 1000}}
    async with limited(redis_url, engine, limits) as front, charges_of(front) as used:
        fields: dict[str, Any] = {"max_tokens": 200, "stream_interval": interval}
        async with front.post(stream=True, **fields) as answer:
            for _ in range(events):  # the first is of no token
                await answer.content.readuntil(b"\n\n")
            await until(lambda: engine.made == made, PATIENCE_S)
        await until(lambda: bool(used), PATIENCE_S)
        assert used == [10 + made]


@pytest.mark.parametrize("tells_ids", [True, False])
@pytest.mark.parametrize(("streams", "made"), [(True, 0), (False, 0), (False, 7)])
async def test_a_client_that_leaves_before_its_answer_pays_for_all_that_was_generated(
    redis_url: str, streams: bool, tells_ids: bool, made: int
) -> None:
    engine = FakeEngine()
    engine.offers_resumable, engine.pauses_after = tells_ids, made
    engine.prompt_cache = lambda fields: (10, 0)
    limits = {"limits": {"tokens_per_minute": 1000}}
    async with limited(redis_url, engine, limits) as front, charges_of(front) as used:
        fields: dict[str, Any] = {"max_tokens": 200, "stream_interval": 99, "stream": streams}
        asking = asyncio.ensure_future(_status(front.post(**fields)))
        await until(lambda: engine.running and engine.made == made, PATIENCE_S)
        asking.cancel()
        await until(lambda: bool(used), PATIENCE_S)
        assert used == [10 + made]


async def test_a_client_that_leaves_while_it_waits_for_an_engine_pays_nothing(
    redis_url: str,
) -> None:
    engine = FakeEngine(limit=1)
    engine.pauses_after = 0
    limits = {"limits": {"tokens_per_minute": 10000}}
    async with limited(redis_url, engine, limits) as front, charges_of(front) as used:
        first = asyncio.create_task(ask_chat(front, max_tokens=4))
        await until(lambda: engine.running, PATIENCE_S)
        second = asyncio.create_task(ask_chat(front, max_tokens=200))
        await until(lambda: front.gateway.parts.budgets.under_way == 2, PATIENCE_S)
        second.cancel()
        await until(lambda: bool(used), PATIENCE_S)
        assert used == [0]
        engine.go_on.set()
        assert (await first)[0] == 200


async def test_a_client_that_leaves_a_resumed_stream_pays_for_the_tokens_of_both_engines(
    redis_url: str,
) -> None:
    first, second = engines = [FakeEngine("r0"), FakeEngine("r1")]
    for engine in engines:
        engine.prompt_cache = lambda fields: (10, 0)
        engine.pauses_after = 1
    fields: dict[str, Any] = {"max_tokens": 200, "stream_interval": 4, "stream": True}
    limits = {"limits": {"tokens_per_minute": 1000}}
    async with limited(redis_url, first, limits, [second]) as front, charges_of(front) as used:
        async with front.post(**fields) as answer:
            if second.running:
                first, second = second, first
            first.dies_after, second.pauses_after = 5, 11
            first.go_on.set()
            await answer.content.readuntil(b"t8 ")
            await until(lambda: second.made == 7, PATIENCE_S)
        await until(lambda: bool(used), PATIENCE_S)
        assert used == [10 + 11]


@pytest.mark.parametrize("spelled", ["300", 300.0, " 3_00 "])
async def test_a_number_in_a_string_is_charged_like_a_number(redis_url: str, spelled: Any) -> None:
    engine = FakeEngine()
    engine.pauses_after = 0
    limits = {"limits": {"tokens_per_minute": 1000}}
    async with limited(redis_url, engine, limits) as front:
        asked = [front.post("/v1/completions", prompt="a", max_tokens=spelled) for _ in range(4)]
        answers = [asyncio.ensure_future(_status(one)) for one in asked]
        await until(lambda: engine.running, PATIENCE_S)
        refused, _ = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        assert {one.result() for one in refused} == {429}
        engine.go_on.set()
        assert sorted(await asyncio.gather(*answers))[-1] == 429


async def _status(post: Any) -> int:
    async with post as answer:
        return int(answer.status)


async def test_tokens_beyond_a_reservation_are_charged(redis_url: str) -> None:
    engine = FakeEngine()
    engine.prompt_cache = lambda fields: (900, 0)  # the gateway took the prompt for short
    async with limited(redis_url, engine, {"limits": {"tokens_per_minute": 1000}}) as front:
        assert (await ask_chat(front, max_tokens=4))[0] == 200
        async with asyncio.timeout(PATIENCE_S):
            while (await ask_chat(front, max_tokens=4))[1] != "rate_limit_exceeded":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert len(engine.bodies) <= 2


async def test_without_redis_only_tenants_with_limits_wait() -> None:
    limits = {"limits": {"requests_per_minute": 2}}
    async with limited(NO_REDIS, FakeEngine(), limits) as front:
        status, code, headers = await ask_chat(front)
        assert (status, code) == (503, "budget_unknown") and int(headers["retry-after"]) >= 1
        assert (await ask_chat(front, {"authorization": f"Bearer {OTHER_KEY}"}))[0] == 200
        metrics = await front.metrics()
        assert metrics["antefix_budgets_by_share",] == 1
        # an outage is the fleet's failure, not the tenant's
        assert metrics["antefix_requests_total", "failed", "interactive"] == 1


async def test_a_request_over_budget_is_no_slo_miss_of_the_fleet(redis_url: str) -> None:
    limits = {"limits": {"requests_per_minute": 1}}
    async with limited(redis_url, FakeEngine(), limits) as front:
        await ask_chat(front)
        await ask_chat(front)
        metrics = await front.metrics()
        assert metrics["antefix_slo_events_total", "goodput", "interactive", "bad"] == 0
        assert metrics["antefix_requests_total", "invalid", "interactive"] == 1


async def test_an_explanation_names_the_limits_and_what_was_left(redis_url: str) -> None:
    limits = {
        "limits": {"requests_per_minute": 9, "concurrent_requests": 3},
        "model_limits": {MODEL: {"tokens_per_minute": 5000}},
    }
    async with limited(redis_url, FakeEngine(), limits) as front:
        _, _, headers = await ask_chat(front, max_tokens=4)
        told = (await front.explanation_of(headers))["budget"]
        (tokens,) = [of for of in told["limits"] if of["kind"] == "tokens"]
        assert tokens == {
            "model": MODEL,
            "kind": "tokens",
            "limit": 5000,
            "left": 5000 - told["tokens"],
        }
        assert [of for of in told["limits"] if of["model"] == ""] == [
            {"model": "", "kind": "requests", "limit": 9, "left": 8},
            {"model": "", "kind": "concurrent", "limit": 3, "left": None},
        ]
        assert told["exhausted"] is None and not told["by_share"]
        assert headers["x-ratelimit-remaining-tokens"] == str(tokens["left"])

        other = {"authorization": f"Bearer {OTHER_KEY}"}
        async with front.post(headers=other) as answer:
            path = f"/antefix/requests/{answer.headers['x-request-id']}"

        async def told_of_the_other() -> dict[str, Any] | None:
            async with front.get(path, headers=other) as found:
                return await found.json() if found.status == 200 else None

        async with asyncio.timeout(PATIENCE_S):
            while (explained := await told_of_the_other()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert explained["budget"] is None


async def test_a_request_that_no_budget_has_room_for_is_explained(redis_url: str) -> None:
    limits = {"model_limits": {MODEL: {"requests_per_minute": 1}}}
    async with limited(redis_url, FakeEngine(), limits) as front:
        await ask_chat(front)
        _, code, headers = await ask_chat(front)
        assert code == "rate_limit_exceeded"
        told = await front.explanation_of(headers)
        assert told["admission"]["verdict"] == "rejected"
        assert (
            "has reached its limit of 1 request per minute for this model"
            in told["admission"]["reason"]
        )
        assert told["budget"]["exhausted"] == "requests"
        assert told["budget"]["limits"] == [
            {"model": MODEL, "kind": "requests", "limit": 1, "left": 0}
        ]
        assert told["candidates"] == []


async def test_metrics_report_what_is_left_of_a_tenants_budgets(redis_url: str) -> None:
    limits = {"limits": {"requests_per_minute": 2, "concurrent_requests": 9}}
    async with limited(redis_url, FakeEngine(), limits) as front:
        whose = ("requests", "", TENANT)
        metrics = await front.metrics()
        assert metrics["antefix_budget_limit", *whose] == 2
        assert metrics["antefix_budget_left", *whose] == 2
        assert metrics["antefix_budget_rejections_total", *whose] == 0
        for _ in range(3):
            await ask_chat(front)
        metrics = await front.metrics()
        assert metrics["antefix_budget_left", *whose] == 0
        assert metrics["antefix_budget_rejections_total", *whose] == 1
        assert metrics["antefix_budget_limit", "concurrent", "", TENANT] == 9


LARGE = "x" * 100_000


async def large_head(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request whose large body never arrives."""
    url = urlsplit(front.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {KEY}\r\n"
        "content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{"
    )
    writer.write(head.encode())
    return reader, writer


@pytest.mark.parametrize("limits", [{"requests_per_minute": 1}, {"concurrent_requests": 1}])
async def test_a_large_body_over_budget_is_rejected_before_the_upload(
    redis_url: str, limits: dict[str, int]
) -> None:
    async with limited(redis_url, FakeEngine(), {"limits": limits}) as front:
        _, first = await large_head(front)
        await until(lambda: front.gateway.parts.budgets.under_way)
        reader, second = await large_head(front)
        assert (await asyncio.wait_for(reader.readline(), 60)).split()[1] == b"429"
        assert (await ask_chat(front))[:2] == (429, "rate_limit_exceeded")
        first.close()
        second.close()
        await until(lambda: not front.gateway.parts.budgets.under_way)
        if "concurrent_requests" in limits:
            async with asyncio.timeout(60):
                while (await ask_chat(front))[0] != 200:  # noqa: ASYNC110  # an answer shows it
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("of_model", [{}, {"requests_per_minute": 100, "tokens_per_minute": 10**6}])
@pytest.mark.parametrize("of_tenant", [{}, {"tokens_per_minute": 10**6}])
async def test_a_large_request_counts_once(
    redis_url: str, of_tenant: dict[str, int], of_model: dict[str, int]
) -> None:
    rights = {
        "limits": {"requests_per_minute": 3, "concurrent_requests": 1, **of_tenant},
        "model_limits": {MODEL: of_model} if of_model else {},
    }
    async with limited(redis_url, FakeEngine(), rights, max_n=8) as front:
        budgets = front.gateway.parts.budgets
        for left in (2, 1, 0):
            async with asyncio.timeout(PATIENCE_S):
                # a moment after its answer it still counts as one of those under way
                while (answer := await ask_chat(front, user=LARGE, max_tokens=1))[0] != 200:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert answer[2]["x-ratelimit-remaining-requests"] == str(left)
            await until(lambda: not budgets.under_way)
        assert (await ask_chat(front, user=LARGE))[:2] == (429, "rate_limit_exceeded")
        assert (await ask_chat(front))[:2] == (429, "rate_limit_exceeded")


async def test_a_large_request_over_its_token_limit_is_rejected_and_reserves_nothing(
    redis_url: str,
) -> None:
    rights = {"limits": {"requests_per_minute": 50, "concurrent_requests": 1}}
    rights["model_limits"] = {MODEL: {"tokens_per_minute": 50_000}}  # type: ignore[dict-item]
    async with limited(redis_url, FakeEngine(), rights) as front:
        budgets = front.gateway.parts.budgets
        statuses = []
        for _ in range(100):
            statuses.append((await ask_chat(front, user=LARGE, max_tokens=900))[0])
            await until(lambda: not budgets.under_way)
            await asyncio.sleep(0.05)
            if statuses[-1] != 200:
                break
        assert statuses[-1] == 429
        assert 200 in statuses
