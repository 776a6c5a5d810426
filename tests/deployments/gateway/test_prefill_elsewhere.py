"""Prompts that another pool's engine computes, for the engine that answers to pull them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.responses import JSONResponse

from deployments.fleet.applications import settings_of
from deployments.gateway.pool import gateway_pool
from deployments.wire.headers import (
    EXPECTED_CACHED_HEADER,
    KV_SOURCE_HEADER,
    KV_TIERS_HEADER,
    TIER_TOKENS_HEADER,
)
from deployments.wire.inference_paths import CHAT, COMPLETIONS
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.fakes.publishing import MODEL_PATH
from tests.waiting import until

PEERS: dict[str, Any] = {"kv_tiers": {"host_bytes": "1GiB", "peers": True}}
# 16 tokens a segment: 64 of these 80 can be pulled
PROMPT, PULLED = [*range(100, 180)], 64
# It computes 1,000 tokens per second, so a queue of this many takes two seconds.
BUSY = 2000


@pytest.fixture
def decoder() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def prefiller() -> FakeEngine:
    engine = FakeEngine("r1", model="prompts")
    engine.peer = "10.0.0.1:5600"
    return engine


@pytest.fixture
async def front(
    decoder: FakeEngine,
    prefiller: FakeEngine,
    redis_url: str,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Front]:
    for engine in (decoder, prefiller):
        engine.renderer, engine.segment_tokens = facts(), 16
        engine.host_load_rate = engine.peer_load_rate = 4000.0
    decoder.peer = "10.0.0.0:5600"
    async with gateway_before(
        decoder,
        redis_url=redis_url,
        lookup_budget_ms=1000.0,
        pool=PEERS | {"prefill": {"pool": "small", "always": request.param}},
        small=prefiller,
        small_pool=PEERS | {"model": MODEL_PATH},
    ) as front:
        readers = [pool.reader for pool in front.pools.values()]
        await until(lambda: all(reader.renderer.prompt_tokens for reader in readers))
        yield front


async def explanation_of(front: Front, path: str = COMPLETIONS, **fields: Any) -> dict[str, Any]:
    async with front.post(path, **{"prompt": PROMPT, **fields}) as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return await front.explanation_of(answer.headers)


faster = pytest.mark.parametrize("front", [False], indirect=True, ids=["faster"])
always = pytest.mark.parametrize("front", [True], indirect=True, ids=["always"])


@faster
async def test_a_busy_engine_pulls_the_prompt_that_another_pool_computed(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    front.sees_queues({decoder: BUSY})
    explanation = await explanation_of(front, max_tokens=3, stream=True)
    assert (explanation["pool"], explanation["replica"]) == ("main", "r0")
    assert explanation["way"] == "prefill"
    [chosen] = explanation["candidates"]
    assert chosen["prefill_replica"] == "r1"
    assert chosen["prefill_address"] == prefiller.peer
    assert chosen["prefill"] == len(PROMPT) / 1000
    assert chosen["ways"]["prefill"] < chosen["ways"]["compute"]
    told = explanation["prefilled"]
    assert (told["replica_id"], told["failure"]) == ("r1", None)
    assert told["measured"] > 0
    [asked] = map(json.loads, prefiller.bodies)
    assert (asked["model"], asked["prompt"]) == ("prompts", PROMPT)
    assert (asked["max_tokens"], asked["stream"]) == (1, False)
    [answered] = map(json.loads, decoder.bodies)
    assert (answered["max_tokens"], answered["stream"]) == (3, True)
    assert asked["cache_salt"] == answered["cache_salt"]
    assert decoder.headers[0][KV_SOURCE_HEADER] == prefiller.peer
    assert decoder.headers[0][TIER_TOKENS_HEADER] == f"0 0 {PULLED}"
    assert decoder.headers[0][EXPECTED_CACHED_HEADER] == str(PULLED)
    metrics = await front.metrics()
    assert metrics["antefix_kv_tier_requests_total", "prefill"] == 1
    assert metrics["antefix_kv_tier_prompt_tokens_total", "prefill"] == PULLED
    assert metrics["antefix_kv_tier_offers_total", "prefill", "yes"] == 1
    assert front.pools["small"].scheduler.demand.arrived == 1
    assert not front.pools["small"].scheduler.has_work


@faster
async def test_an_idle_engine_computes_its_prompt(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    explanation = await explanation_of(front)
    assert (explanation["way"], explanation["prefilled"]) == ("compute", None)
    assert explanation["candidates"][0]["prefill_tokens"] == PULLED
    assert not prefiller.bodies
    assert KV_SOURCE_HEADER not in decoder.headers[0]
    assert (await front.metrics())["antefix_kv_tier_offers_total", "prefill", "no"] == 1


@always
async def test_a_pool_may_let_another_one_compute_all_of_its_prompts(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    text = [{"role": "user", "content": "hello " * 40}]
    fields = {"messages": text, "stream": True, "stream_options": {"include_usage": True}}
    explanation = await explanation_of(front, CHAT, prompt=None, min_tokens=2, **fields)
    assert explanation["way"] == "prefill"
    [asked] = map(json.loads, prefiller.bodies)
    assert asked["max_completion_tokens"] == asked["max_tokens"] == 1
    assert (asked["stream_options"], asked["min_tokens"]) == (None, 0)
    assert decoder.headers[0][KV_SOURCE_HEADER] == prefiller.peer


async def computed_instead(front: Front, decoder: FakeEngine) -> dict[str, Any]:
    """The explanation of a request whose prompt the other pool did not compute."""
    explanation = await explanation_of(front)
    assert explanation["replica"] == "r0"
    assert KV_SOURCE_HEADER not in decoder.headers[-1]
    assert TIER_TOKENS_HEADER not in decoder.headers[-1]
    assert decoder.headers[-1][EXPECTED_CACHED_HEADER] == "0"
    return explanation


@always
async def test_the_engine_computes_the_prompt_if_the_other_one_is_lost(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    prefiller.dies_after = 0
    explanation = await computed_instead(front, decoder)
    assert "interrupted" in explanation["prefilled"]["failure"]
    metrics = await front.metrics()
    assert metrics["antefix_kv_tier_requests_total", "compute"] == 1
    assert metrics["antefix_kv_tier_offers_total", "prefill", "no"] == 1
    assert not front.pools["small"].scheduler.has_work


@always
async def test_the_engine_computes_the_prompt_if_the_other_one_refuses_it(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    prefiller.answers = JSONResponse({"error": {"message": "No."}}, 400)
    explanation = await computed_instead(front, decoder)
    assert explanation["prefilled"]["failure"] == "its engine answered 400"


@always
async def test_the_engine_computes_the_prompt_if_the_other_one_hangs(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    prefiller.pauses_after = 0
    explanation = await computed_instead(front, decoder)
    assert explanation["prefilled"]["failure"] == "it took longer than 1.2 s"
    await until(lambda: prefiller.aborted == 1)


@always
async def test_the_engine_computes_the_prompt_if_the_other_pool_has_no_replica(
    front: Front, decoder: FakeEngine
) -> None:
    front.sees(pool="small")
    explanation = await computed_instead(front, decoder)
    assert (explanation["way"], explanation["prefilled"]) == (None, None)


@always
@pytest.mark.parametrize(
    "fields", [{"n": 2}, {"prompt": [*range(10)]}, {"prompt_logprobs": 1}], ids=str
)
async def test_what_cannot_be_pulled_is_not_computed_elsewhere(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine, fields: dict[str, Any]
) -> None:
    explanation = await explanation_of(front, **fields)
    assert explanation["candidates"][0]["prefill_tokens"] == 0
    assert not prefiller.bodies


@always
async def test_a_retry_on_the_engine_that_answers_does_not_repeat_the_prefill(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    decoder.dies_after = 0
    async with front.post(COMPLETIONS, prompt=PROMPT) as answer:
        assert answer.status >= 500
        await answer.read()
    assert len(prefiller.bodies) == 1
    assert KV_TIERS_HEADER in decoder.headers[0]


@faster
async def test_the_setting_changes_while_the_gateway_serves(
    front: Front, decoder: FakeEngine, prefiller: FakeEngine
) -> None:
    given = settings_of(front.gateway.parts.in_force.fleet.model_dump(mode="json"))
    given["pools"]["main"]["prefill"]["always"] = True
    await front.gateway.reconfigure(given)
    assert (await explanation_of(front))["way"] == "prefill"
    async with front.get("/antefix/status") as answer:
        assert (await answer.json())["pools"]["main"]["prefill_pool"] == "small"
    given["pools"]["main"]["prefill"] = None
    await front.gateway.reconfigure(given)
    assert (await explanation_of(front))["candidates"][0]["prefill_replica"] == ""
    assert len(prefiller.bodies) == 1


@always
async def test_a_request_that_cannot_be_read_for_the_other_pool_is_served(
    front: Front, decoder: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*of: Any) -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(gateway_pool, "prompt_of", fails)
    explanation = await computed_instead(front, decoder)
    assert explanation["prefilled"] is None
