"""Anthropic's messages that a real engine is asked for, and what a client has of such a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.deployments.engine.vllm.continuable_requests import MESSAGES as CHAT_MESSAGES
from tests.deployments.engine.vllm.continuable_requests import SCHEMA
from tests.deployments.engine.vllm.cut_answers import Body

_TOOL = {"name": "climb", "input_schema": SCHEMA}
_ASKED: Body = {"messages": CHAT_MESSAGES, "temperature": 0, "max_tokens": 18}
STREAMS: dict[str, Body] = {
    "a text": _ASKED,
    "a schema": _ASKED
    | {"max_tokens": 60, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "a named tool": _ASKED
    | {"max_tokens": 60, "tools": [_TOOL], "tool_choice": {"type": "tool", "name": "climb"}},
    "any tool": _ASKED | {"max_tokens": 80, "tools": [_TOOL], "tool_choice": {"type": "any"}},
    "a thought": _ASKED | {"chat_template_kwargs": {"thinking": True}},
}


def message_of(events: Sequence[str]) -> dict[str, Any]:
    """The message that a client puts together of all events of a stream."""
    made: dict[str, Any] = {"blocks": []}
    for event in events:
        data = json.loads(event.partition("data: ")[2])
        kind = data["type"]
        if kind == "message_start":
            made |= {"id": data["message"]["id"], "input": data["message"]["usage"]}
        elif kind == "content_block_start":
            made["blocks"].append({**data["content_block"], "said": ""})
        elif kind == "content_block_delta":
            for name, value in data["delta"].items():
                if name == "signature":
                    made["blocks"][data["index"]]["signature"] = value
                elif name != "type":
                    made["blocks"][data["index"]]["said"] += value
        elif kind == "message_delta":
            made |= {"stop": data["delta"], "output_tokens": data["usage"]["output_tokens"]}
    assert events[-1].startswith("event: message_stop")
    return made
