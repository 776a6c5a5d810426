"""What an engine caches is found again: real engines, real events, real Redis, real gateways."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from deployments.prompt import PromptTokens, RendererFacts
from deployments.wire.headers import RENDERER_PATH
from tests.real.conftest import RunningFleet
from tests.real.conversations import SEGMENT_TOKENS, ask, text
from tests.real.test_streams_and_drains import eventually, status

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Zürich"}'},
        }
    ],
}
SCHEMA = {"name": "answer", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
USER = {"role": "user", "content": "How is the weather in Zürich?"}
CHATS: dict[str, dict[str, Any]] = {
    "one message": {"messages": [USER]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "many turns": {
        "messages": [USER, {"role": "assistant", "content": "Fine."}, USER, USER],
    },
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 3}]},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tool result": {
        "messages": [USER, CALL, {"role": "tool", "tool_call_id": "call_1", "content": "Rain"}],
        "tools": [TOOL],
    },
    "JSON schema": {
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    },
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "It is"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}
PROMPTS: dict[str, Any] = {
    "text": "Once upon a time\n",
    "texts": ["Once", " upon"],
    "token ids": [1, 2, 300, 4000],
    "lists of token ids": [[1, 2], [300, 4000]],
}


@pytest.fixture(scope="module")
def renderer(fleet: RunningFleet) -> PromptTokens:
    """What a gateway makes of the facts that a running engine exports."""
    url = fleet.replicas()[0]["url"]

    async def facts() -> bytes:
        async with (
            aiohttp.ClientSession(url, headers=fleet.engine_headers(url)) as http,
            http.get(RENDERER_PATH) as answer,
        ):
            assert answer.status == 200
            return await answer.read()

    return PromptTokens(RendererFacts.from_json(asyncio.run(facts())))


@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
async def test_a_gateway_has_the_tokens_that_the_engine_has_of_a_chat(
    renderer: PromptTokens,
    http: aiohttp.ClientSession,
    fleet: RunningFleet,
    fields: dict[str, Any],
) -> None:
    body = {"model": fleet.model, "max_tokens": 1, "return_token_ids": True, **fields}
    async with http.post("/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        engines = (await answer.json())["prompt_token_ids"]
    assert renderer.token_ids("/v1/chat/completions", body) == [engines]


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
async def test_a_gateway_has_the_tokens_that_the_engine_has_of_a_prompt(
    renderer: PromptTokens, http: aiohttp.ClientSession, fleet: RunningFleet, prompt: Any
) -> None:
    body = {"model": fleet.model, "prompt": prompt, "max_tokens": 1, "return_token_ids": True}
    async with http.post("/v1/completions", json=body) as answer:
        assert answer.status == 200
        engines = [choice["prompt_token_ids"] for choice in (await answer.json())["choices"]]
    assert renderer.token_ids("/v1/completions", body) == engines


@pytest.mark.core
async def test_a_prompt_goes_where_its_prefix_is_and_the_engine_confirms_it(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    prompt = text("goes where its prefix is", 300)
    first = await ask(http, prompt, fleet.model)
    again = await ask(http, f"{prompt} And now?", fleet.model)
    assert again.replica == first.replica
    assert again.cached == again.predicted_cached >= 2 * SEGMENT_TOKENS


async def test_equal_prompts_with_different_salts_share_no_cache(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    prompt = text("salted", 300)
    await ask(http, prompt, fleet.model, cache_salt="one")
    other = await ask(http, prompt, fleet.model, cache_salt="two")
    same = await ask(http, prompt, fleet.model, cache_salt="one")
    assert other.cached == other.predicted_cached == 0
    assert same.cached == same.predicted_cached >= 2 * SEGMENT_TOKENS


async def test_an_unstreamed_answer_counts_as_running_from_its_first_token(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    """The answer arrives in one piece, long after; until then vLLM yields nothing of it."""
    body = {"model": fleet.model, "prompt": text("whole", 300), "max_tokens": 600}
    asked = asyncio.create_task(http.post("/v1/completions", json={**body, "ignore_eos": True}))

    async def runs() -> bool:
        replicas = (await status(http))["replicas"]
        queued = sum(r["waiting"] + r["queued_prefill_tokens"] for r in replicas)
        return bool(queued == 0 and sum(r["running"] for r in replicas) == 1)

    await eventually(runs, within_s=120)
    assert not asked.done()
    assert (await asked).status == 200


async def test_a_request_is_explained_by_any_gateway(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    prompt = text("explained", 300)
    await ask(http, prompt, fleet.model)
    answer = await ask(http, prompt, fleet.model, headers={"x-request-id": "explain-me"})
    for _ in range(6):  # a connection each: the gateways take turns
        async with aiohttp.ClientSession(fleet.root, headers=fleet.headers) as fresh:
            told = await explanation(fresh, "explain-me")
        assert told["replica"] == answer.replica
        assert told["cached_tokens"]["confirmed"] == answer.cached >= 2 * SEGMENT_TOKENS
        assert len(told["candidates"]) == 2
        assert all("score" in candidate for candidate in told["candidates"])
        assert sum(told["reuse_loss_tokens"].values()) == told["new_tokens"] == 0
        assert told["ttft_s"]["observed"] > 0


async def test_an_unknown_explanation_is_a_404_with_the_retention_time(
    http: aiohttp.ClientSession,
) -> None:
    async with http.get("/antefix/requests/no-such-request") as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]
    assert "no-such-request" in error["message"]
    assert "120 s" in error["message"]


async def test_a_request_may_name_its_policy(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    replicas = set()
    for i in range(4):
        headers = {"x-antefix-policy": "round_robin", "connection": "keep-alive"}
        answer = await ask(http, f"policy {i}", fleet.model, headers=headers)
        assert answer.policy == "round_robin"
        replicas.add(answer.replica)
    assert len(replicas) == 2
    answer = await ask(http, "x", fleet.model, headers={"x-antefix-policy": "best"})
    assert answer.status == 400
    assert "'best'" in answer.body["error"]["message"]
    assert "least_loaded" in answer.body["error"]["message"]


async def explanation(http: aiohttp.ClientSession, request_id: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while True:
            async with http.get(f"/antefix/requests/{request_id}") as answer:
                if answer.status == 200:
                    told: dict[str, Any] = await answer.json()
                    return told
            await asyncio.sleep(0.05)
