"""Agents' own requests are answered, turn after turn, with the tools that they always offer."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from deployments.wire.inference_paths import COUNT_TOKENS, MESSAGES, RESPONSES
from tests.agents.recorded import (
    CLAUDE_CODE_BETAS,
    CLAUDE_CODE_TURN,
    CODEX_TURN,
    claude_code,
    codex,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

# Claude Code asks with this query.
BETA = "?beta=true"
MOST_TOKENS = 16


async def events_of(
    http: aiohttp.ClientSession, path: str, body: Any, **headers: str
) -> tuple[list[dict[str, Any]], Any]:
    """Return the events of a stream, and the answer's headers."""
    async with http.post(path, json=body, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        data = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
        return [json.loads(each) for each in data], answer.headers


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_codex_is_answered_with_its_defaults(http: aiohttp.ClientSession, turns: int) -> None:
    body = {**codex(*CODEX_TURN * turns), "max_output_tokens": MOST_TOKENS}
    events, headers = await events_of(http, RESPONSES, body)
    assert headers["x-antefix-left-out-tools"] == "web_search"
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert "web_search" not in str(events[-1]["response"]["tools"])


async def test_a_search_that_codex_demands_is_refused(http: aiohttp.ClientSession) -> None:
    async with http.post(RESPONSES, json={**codex(), "tool_choice": {"type": "web_search"}}) as r:
        error = (await r.json())["error"]
        assert (r.status, error["code"]) == (400, "field_not_allowed")
    assert "'web_search'" in error["message"]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_claude_code_is_answered_with_its_defaults(
    http: aiohttp.ClientSession, turns: int
) -> None:
    body = claude_code(*CLAUDE_CODE_TURN * turns, max_tokens=MOST_TOKENS)
    beta = {"anthropic-version": "2023-06-01", "anthropic-beta": CLAUDE_CODE_BETAS}
    events, headers = await events_of(http, MESSAGES + BETA, body, **beta)
    assert headers["x-antefix-left-out-tools"] == "web_search"
    assert [events[0]["type"], events[-1]["type"]] == ["message_start", "message_stop"]
    counted = {name: body[name] for name in ("model", "messages", "system", "tools", "thinking")}
    async with http.post(COUNT_TOKENS + BETA, json=counted, headers=beta) as answer:
        tokens = (await answer.json())["input_tokens"]
    assert tokens == int(headers["x-antefix-prompt-tokens"])


async def test_only_the_allowed_tool_is_called(http: aiohttp.ClientSession) -> None:
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "get_goal"}],
    }
    body = {**codex(), "stream": False, "tool_choice": choice, "max_output_tokens": 60}
    async with http.post(RESPONSES, json=body) as answer:
        response = await answer.json()
        assert answer.status == 200, response
    assert [tool["name"] for tool in response["tools"]] == ["get_goal"]
    assert response["tool_choice"] == "required"
