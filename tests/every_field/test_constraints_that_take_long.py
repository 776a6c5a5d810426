"""A constraint that takes too long to compile costs its sender an error, and others no wait."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.every_field.asking import request
from tests.every_field.conftest import Served

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


async def test_others_are_answered_while_it_is_tried_and_then_it_is_refused(
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


FUNCTION = {"name": "f", "strict": True, "parameters": {"type": "array", "maxItems": 10**9}}
TOOL = {"type": "function", "function": FUNCTION}
HUGE = {"type": "array", "maxItems": 10**9}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"structured_outputs": {"choice": ["x" * 1000] * 100}}),
        (CHAT, {"structured_outputs": {"regex": "(a{1000}){1000}"}}),
        (RESPONSES, {"structured_outputs": {"grammar": 'root ::= "a"{1000000}'}}),
        *((path, schema_of(path, HUGE)) for path in (CHAT, COMPLETIONS, RESPONSES)),
        (CHAT, {"tools": [TOOL], "tool_choice": "required"}),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    ],
)
async def test_what_exceeds_a_bound_is_refused_on_every_path(
    http: aiohttp.ClientSession, served: Served, path: str, fields: dict[str, Any]
) -> None:
    status, answer = await asked(http, path, fields)
    assert status == 400, answer
    assert "is allowed" in answer["error"]["message"]
    assert answer["error"]["param"]
    assert not served.dead
