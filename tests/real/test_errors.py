"""Every wrong request is answered in OpenAI's shape, with the field and what to do."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await answer.text()
    assert "Traceback" not in text and 'File "' not in text
    body: dict[str, Any] = await answer.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": []}, "messages", "messages"),
        ({"messages": "hi"}, "messages", "messages"),
        ({}, "messages", "messages"),
        ({"messages": MESSAGES, "temperature": "hot"}, "temperature", "temperature"),
        ({"messages": MESSAGES, "temperature": -1}, "temperature", "temperature"),
        ({"messages": MESSAGES, "top_p": 7}, "top_p", "top_p"),
        ({"messages": MESSAGES, "max_tokens": 0}, "max_tokens", "max_tokens"),
        ({"messages": MESSAGES, "max_tokens": -5}, "max_tokens", "max_tokens"),
        ({"messages": MESSAGES, "max_tokens": "many"}, "max_tokens", "max_tokens"),
        ({"messages": MESSAGES, "n": "two"}, "n", "n"),
        ({"messages": MESSAGES, "stream": "maybe"}, "stream", "stream"),
        ({"messages": MESSAGES, "stop": ["x"] * 90_000}, "stop", "90,000"),
        ({"messages": MESSAGES, "stop": ["x"] * 1_000_000}, None, "100,000 strings"),
        ({"messages": MESSAGES, "stop_token_ids": [1] * 900_000}, "stop_token_ids", "900,000"),
        ({"messages": MESSAGES, "stop_token_ids": [1] * 1_000_000}, None, "1,000,000 items"),
    ],
)
async def test_a_bad_field_is_a_400_that_names_it(
    http: aiohttp.ClientSession,
    fleet: RunningFleet,
    fields: dict[str, Any],
    param: str | None,
    said: str,
) -> None:
    async with http.post(CHAT, json={"model": fleet.model, **fields}) as answer:
        error = await error_of(answer)
    assert answer.status == 400, error
    assert said in error["message"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


async def test_the_error_of_a_too_long_prompt_has_both_numbers(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    content = "word " * 3000
    body = {"model": fleet.model, "messages": [{"role": "user", "content": content}]}
    async with http.post(CHAT, json=body) as answer:
        error = await error_of(answer)
    assert answer.status == 400
    assert error["code"] == "context_length_exceeded"
    # vLLM stops counting at one token too many
    assert "1024 tokens" in error["message"]
    assert "at least 1025 input tokens" in error["message"]
    assert "parameter=" not in error["message"]


async def test_max_tokens_above_the_context_length_is_a_400(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    body = {"model": fleet.model, "messages": MESSAGES, "max_tokens": 5000}
    async with http.post(CHAT, json=body) as answer:
        error = await error_of(answer)
    assert answer.status == 400
    assert (error["code"], error["param"]) == ("invalid_value", "max_tokens")
    assert "5000" in error["message"] and "1024" in error["message"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "("}},
        {"logit_bias": {"999999": 1}},
        {"stop_token_ids": [10**6]},
        {"logprobs": True, "top_logprobs": 21},
    ],
)
async def test_a_rejection_during_generation_is_a_400_also_in_streams(
    http: aiohttp.ClientSession, fleet: RunningFleet, fields: dict[str, Any], stream: bool
) -> None:
    body = {"model": fleet.model, "messages": MESSAGES, "stream": stream, **fields}
    async with http.post(CHAT, json=body) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (400, "invalid_value")


async def test_a_response_that_the_engine_refuses_is_a_400_in_a_stream_as_well(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    bias = {"999999": 1}
    body = {"model": fleet.model, "input": "hi", "stream": True, "logit_bias": bias}
    async with http.post("/v1/responses", json=body) as answer:
        error = await error_of(answer)
    assert (answer.status, error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        (b'{"model": ', {}, 400, "invalid_json"),
        (b"", {}, 400, "invalid_json"),
        (b"[1, 2]", {}, 400, "invalid_json"),
        (b'{"model": "\xff\xfe"}', {}, 400, "invalid_json"),
        (b'{"model": "MODEL", "prompt": "\\ud800"}', {}, 400, "invalid_unicode"),
        (b"{}", {"content-type": "text/plain"}, 415, "unsupported_content_type"),
        (b'{"a": "' + b"x" * 9_000_000 + b'"}', {}, 413, "body_too_large"),
        (b"{}", {}, 400, "missing_required_parameter"),
        (b'{"model": "gpt-4"}', {}, 404, "model_not_found"),
        (b"{}", {"authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        (b"{}", {"authorization": ""}, 401, "missing_api_key"),
    ],
)
async def test_a_bad_body_is_refused_at_the_gateway(
    http: aiohttp.ClientSession,
    fleet: RunningFleet,
    body: bytes,
    headers: dict[str, str],
    status: int,
    code: str,
) -> None:
    data = body.replace(b"MODEL", fleet.model.encode())
    given = {"content-type": "application/json", **headers}
    async with http.post("/v1/completions", data=data, headers=given) as answer:
        error = await error_of(answer)
    assert (answer.status, error["code"]) == (status, code)


async def test_a_wrong_method_and_a_wrong_route_return_errors(http: aiohttp.ClientSession) -> None:
    async with http.get(CHAT) as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (405, "method_not_allowed")
    async with http.get("/v1/nothing") as answer:
        assert (answer.status, (await error_of(answer))["code"]) == (404, "unknown_url")


async def test_a_replica_accepts_requests_only_from_gateways(fleet: RunningFleet) -> None:
    url = fleet.replicas()[0]["url"]
    async with aiohttp.ClientSession(url) as anyone:
        async with anyone.get("/v1/models") as answer:
            assert answer.status == 403
        async with anyone.get("/v1/models", headers=fleet.engine_headers(url)) as answer:
            assert answer.status == 200
