"""Kinds of requests whose engine is cut off: short, for a tiny model that is interpreted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENS = 20
SCHEMA = {
    "type": "object",
    "properties": {
        "gates": {"type": "array", "items": {"enum": [1, 22, 333]}, "minItems": 6, "maxItems": 9},
        "open": {"type": "boolean"},
    },
    "required": ["gates", "open"],
    "additionalProperties": False,
}
PATTERN = "(ab?c){6,9}[0-9]{8}"


def _is_harbour(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _is_json(text: str) -> bool:
    """Of a tool that is not strict, vLLM lets any JSON be the arguments."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Kind:
    """`is_valid`: whether a choice's text keeps what the request demands. `may_be_cut`: its grammar
    lets a number go on for ever, so a choice that `max_tokens` ended need not be valid."""

    path: str
    body: Mapping[str, Any]
    is_valid: Callable[[str], bool] = lambda text: True
    may_be_cut: bool = False

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))

    def asked(self, model: str, number: int) -> dict[str, Any]:
        """Its request with the prompt of that number."""
        text = f"Number {number}. Name the gates of the harbour."
        messages = [{"role": "user", "content": text}]
        prompts = {CHAT: ("messages", messages), COMPLETIONS: ("prompt", text)}
        key, prompt = prompts.get(self.path, ("input", text))
        ids = {} if self.path == RESPONSES else {"return_token_ids": True}
        return {"model": model, key: prompt, **ids, **self.body}


_WHOLE = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_BOUND = {"temperature": 0, "max_tokens": 120}
_RESPONSE = {"temperature": 0, "max_output_tokens": TOKENS, "ignore_eos": True}
_JSON = {"type": "json_schema", "json_schema": {"name": "harbour", "schema": SCHEMA}}
_TOOL = {
    "tools": [{"type": "function", "function": {"name": "build", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "build"}},
}

KINDS: Mapping[str, Kind] = {
    "chat": Kind(CHAT, _WHOLE | _STREAM),
    "chat in one piece": Kind(CHAT, _WHOLE),
    "completion": Kind(COMPLETIONS, _WHOLE | _STREAM | {"frequency_penalty": 0.6}),
    "completion in one piece": Kind(COMPLETIONS, _WHOLE),
    "response": Kind(RESPONSES, _RESPONSE | {"stream": True}),
    "tool": Kind(CHAT, _BOUND | _STREAM | _TOOL, _is_json, may_be_cut=True),
    "tool in one piece": Kind(CHAT, _BOUND | _TOOL, _is_json, may_be_cut=True),
    "JSON schema": Kind(CHAT, _BOUND | _STREAM | {"response_format": _JSON}, _is_harbour),
    "regex": Kind(
        COMPLETIONS,
        _BOUND | _STREAM | {"structured_outputs": {"regex": PATTERN}},
        lambda text: re.fullmatch(PATTERN, text) is not None,
    ),
    "logprobs": Kind(CHAT, _WHOLE | _STREAM | {"logprobs": True, "top_logprobs": 3}),
    "seeded": Kind(CHAT, _WHOLE | _STREAM | {"temperature": 1, "seed": 7}),
    "two choices": Kind(CHAT, _WHOLE | _STREAM | {"temperature": 1, "seed": 7, "n": 2}),
}
