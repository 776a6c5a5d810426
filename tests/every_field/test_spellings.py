"""A real engine takes every spelling of a request, and reads all of it."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from deployments.wire.inference_paths import GENERATING, RESPONSES
from tests.deployments.prompt.spellings import SPELLED, assistant_message, conversation
from tests.every_field.asking import LEAST, ask, request
from tests.every_field.described import fields_of
from tests.every_field.serving import Served
from tests.every_field.values import DETOKENIZE
from tests.fakes.engine import MODEL
from tests.some import some

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

NEEDED = {"model", "messages", "input", "prompt", "tokens", "max_tokens"}
SECOND: tuple[dict[str, Any], ...] = (
    {"type": "output_text", "text": "two " * 20},
    {"type": "refusal", "refusal": "no " * 20},
)


def streamed(path: str) -> tuple[bool, ...]:
    return (False, True) if path in GENERATING else (False,)


@pytest.mark.parametrize("path", sorted(LEAST.keys() - {DETOKENIZE}))
async def test_a_null_in_any_field_counts_as_absent(
    path: str, http: aiohttp.ClientSession, served: Served
) -> None:
    described = await fields_of(http)
    refused = {}
    for name in some(sorted(described[path] - NEEDED)):
        for stream in streamed(path):
            fields = {**({"stream": True} if stream else {}), name: None}
            answer = await ask(http, path, request(path, "Hi.", fields))
            if answer.status != 200 or answer.fault:
                refused[name, stream] = answer.body[:300]
    assert refused == {}
    assert not served.dead


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", SPELLED)
async def test_an_engine_answers_every_spelling(
    name: str, stream: bool, http: aiohttp.ClientSession
) -> None:
    path, fields = SPELLED[name]
    least: dict[str, Any] = {
        name: 3 for name in ("max_tokens", "max_output_tokens") if name in LEAST[path]
    }
    answer = await ask(http, path, {**fields, **least, "model": MODEL, "stream": stream})
    assert (answer.status, answer.fault) == (200, None), answer.body


async def tokens_of(http: aiohttp.ClientSession, fields: dict[str, Any]) -> int:
    asked = {**fields, "model": MODEL, "max_output_tokens": 1}
    async with http.post(RESPONSES, json=asked) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        return int(told["usage"]["input_tokens"])


@pytest.mark.parametrize("kind", [{}, {"type": "message"}])
@pytest.mark.parametrize(
    "second",
    [{"type": "output_text", "text": "two " * 20}, {"type": "refusal", "refusal": "no " * 20}],
)
async def test_the_model_sees_all_parts_of_an_answer(
    kind: dict[str, Any], second: dict[str, Any], http: aiohttp.ClientSession
) -> None:
    first = {"type": "output_text", "text": "one"}
    one = await tokens_of(http, conversation(assistant_message(first, **kind))[1])
    both = await tokens_of(http, conversation(assistant_message(first, second, **kind))[1])
    assert both >= one + 20


@pytest.mark.parametrize("stream", [False, True])
async def test_a_service_tier_that_vllm_does_not_know_is_served(
    stream: bool, http: aiohttp.ClientSession
) -> None:
    """Codex sends tiers of OpenAI's service, and vLLM's responses can repeat only its own."""
    asked = {"input": "Hi.", "service_tier": "ultrafast", "stream": stream}
    answer = await ask(http, RESPONSES, {"model": MODEL, "max_output_tokens": 16, **asked})
    assert (answer.status, answer.fault) == (200, None)
    assert "ultrafast" not in answer.body


async def test_the_gateway_rejects_a_request_with_many_invalid_items(
    http: aiohttp.ClientSession,
) -> None:
    answer = await ask(http, RESPONSES, {"model": MODEL, "input": [{}] * 20_000})
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert error["param"] == "input"
    assert "'input[0]'" in error["message"]
