"""A constraint that takes too long to compile costs its sender an error, and others no wait."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.deployments.engine.vllm.known_constraints import NESTED
from tests.every_field.asking import request
from tests.every_field.serving import Served

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def lengths(count: int) -> dict[str, Any]:
    """A schema within the bounds; xgrammar takes seconds for each property."""
    names = [f"p{i}" for i in range(count)]
    properties = {name: {"type": "string", "maxLength": 1000 + i} for i, name in enumerate(names)}
    return {"type": "object", "properties": properties, "required": names}


async def asked(
    http: aiohttp.ClientSession, path: str, fields: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    async with http.post(path, json=request(path, "Say something.", fields)) as answer:
        return answer.status, await answer.json()


def schema_of(path: str, schema: dict[str, Any]) -> dict[str, Any]:
    if path == RESPONSES:
        return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"response_format": format_}


async def test_other_requests_are_answered_while_a_slow_constraint_is_tried_and_rejected(
    http: aiohttp.ClientSession, served: Served
) -> None:
    refused = asyncio.ensure_future(asked(http, CHAT, schema_of(CHAT, lengths(200))))
    for _ in range(3):
        yes_or_no = {"structured_outputs": {"choice": ["yes", "no"]}}
        status, _ = await asked(http, COMPLETIONS, yes_or_no)
        assert status == 200
    assert not refused.done()
    status, answer = await refused
    assert (status, answer["error"]["param"]) == (400, "response_format")
    assert "cannot compile the schema within" in answer["error"]["message"]
    assert not served.dead


def refusal_in(text: str) -> dict[str, Any]:
    """Of an answer in one piece, or of the last event of a stream that is no end."""
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    error: dict[str, Any] = json.loads(lines[-1] if lines else text)["error"]
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, schema_of(CHAT, lengths(200)), "response_format"),
        (COMPLETIONS, schema_of(COMPLETIONS, lengths(200)), "response_format"),
        (RESPONSES, schema_of(RESPONSES, lengths(200)), "text.format"),
        (CHAT, {"structured_outputs": {"json": lengths(200)}}, "structured_outputs.json"),
        (RESPONSES, {"structured_outputs": {"json": lengths(200)}}, "structured_outputs.json"),
    ],
)
async def test_a_slow_constraint_is_refused_with_bound_field_and_remedy_on_every_path(
    http: aiohttp.ClientSession, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    body = request(path, "Say something.", {**fields, "stream": stream})
    async with http.post(path, json=body) as answer:
        status, error = answer.status, refusal_in(await answer.text())
    assert (status, error["param"]) == (400, param)
    assert "within 10 s of CPU time and 512 MiB of memory. Simplify it" in error["message"]


HUGE = {"type": "array", "maxItems": 10**9}
SUM = 'root ::= s\ns ::= "a" | s s\n'
FUNCTION = {"name": "f", "strict": True, "parameters": HUGE}
TOOL = {"type": "function", "function": FUNCTION}
FLAT_TOOL = {"type": "function", **FUNCTION}
TOOL_FIELD = "tools[0].function.parameters"
BY_NAME = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (
            COMPLETIONS,
            {"structured_outputs": {"choice": ["x" * 1000] * 100}},
            "structured_outputs.choice",
        ),
        (CHAT, {"structured_outputs": {"regex": "(a{1000}){1000}"}}, "structured_outputs.regex"),
        (
            RESPONSES,
            {"structured_outputs": {"grammar": 'root ::= "a"{1000000}'}},
            "structured_outputs.grammar",
        ),
        (CHAT, {"structured_outputs": {"json": HUGE}}, "structured_outputs.json"),
        (CHAT, schema_of(CHAT, HUGE), "response_format"),
        (COMPLETIONS, schema_of(COMPLETIONS, HUGE), "response_format"),
        (RESPONSES, schema_of(RESPONSES, HUGE), "text.format"),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}, "tools[0].function.parameters"),
        (CHAT, {"tools": [TOOL], "tool_choice": BY_NAME}, "tools[0].function.parameters"),
        (RESPONSES, {"tools": [FLAT_TOOL], "tool_choice": "required"}, "tools[0].parameters"),
        (COMPLETIONS, {"structured_outputs": {"regex": NESTED}}, "structured_outputs.regex"),
        (CHAT, {"structured_outputs": {"grammar": SUM}}, "structured_outputs.grammar"),
        (RESPONSES, schema_of(RESPONSES, {"type": "string", "pattern": NESTED}), "text.format"),
        (CHAT, schema_of(CHAT, {"type": "string", "pattern": NESTED}), "response_format"),
    ],
)
async def test_the_rejection_of_an_oversized_constraint_names_its_field_on_every_path(
    http: aiohttp.ClientSession,
    served: Served,
    path: str,
    fields: dict[str, Any],
    param: str,
    stream: bool,
) -> None:
    body = request(path, "Say something.", {**fields, "stream": stream})
    async with http.post(path, json=body) as answer:
        status, error = answer.status, refusal_in(await answer.text())
    assert (status, error["param"]) == (400, param)
    is_ambiguous = fields == {"structured_outputs": {"grammar": SUM}}
    expected = "Write `s ::= item s | item` instead" if is_ambiguous else "is allowed. "
    assert expected in error["message"]
    assert not served.dead


SLOW_WORDS = r"(\w+\s?)+"
NOT = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
STRICT = {"name": "f", "strict": True, "parameters": NOT}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_a_constraint_that_is_slow_to_follow_is_refused_on_every_path(
    http: aiohttp.ClientSession, path: str, stream: bool
) -> None:
    fields = {"structured_outputs": {"regex": SLOW_WORDS}, "stream": stream}
    async with http.post(path, json=request(path, "Say something.", fields)) as answer:
        status, error = answer.status, refusal_in(await answer.text())
    assert (status, error["param"]) == (400, "structured_outputs.regex")
    assert "ms of CPU time per token to follow the regular expression" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, schema_of(CHAT, NOT), "response_format"),
        (COMPLETIONS, schema_of(COMPLETIONS, NOT), "response_format"),
        (RESPONSES, schema_of(RESPONSES, NOT), "text.format"),
        (CHAT, {"structured_outputs": {"json": NOT}}, "structured_outputs.json"),
        (CHAT, {"tools": [{"type": "function", "function": STRICT}]}, TOOL_FIELD),
        (RESPONSES, {"tools": [{"type": "function", **STRICT}]}, "tools[0].parameters"),
    ],
)
async def test_the_rejection_of_an_unenforced_schema_keyword_names_its_field_on_every_path(
    http: aiohttp.ClientSession, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    body = request(path, "Say something.", {**fields, "stream": stream})
    async with http.post(path, json=body) as answer:
        status, error = answer.status, refusal_in(await answer.text())
    assert (status, error["param"]) == (400, param)
    assert "'not' at /properties/a/not of the schema" in error["message"]


async def test_the_schema_of_a_non_strict_tool_may_contain_any_keyword(
    http: aiohttp.ClientSession,
) -> None:
    function = {"name": "f", "parameters": NOT}
    status, _ = await asked(http, CHAT, {"tools": [{"type": "function", "function": function}]})
    assert status == 200
