"""The kinds of requests whose answers have to survive, and constraints on these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema

MODEL, ADAPTER = "resumed", "adapted"
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOKENS, LONGEST = 120, 300

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "floors": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 20,
            "maxItems": 24,
        },
        "tall": {"type": "boolean"},
    },
    "required": ["name", "floors", "tall"],
    "additionalProperties": False,
}
PATTERN = "(ab?c){30,40}[0-9]{20}"


def _is_tower(text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@dataclass(frozen=True)
class Kind:
    """`is_valid`: whether a choice's text meets the request's constraint. `speculates`: also used
    where engines speculate, which have no adapter and cannot resume a seed. `stops`: at a string
    of the same answer."""

    path: str
    body: Mapping[str, Any]
    is_valid: Callable[[str], bool] = lambda text: True
    speculates: bool = True
    stops: bool = False

    def asked(self, number: int) -> dict[str, Any]:
        """Its request, with prompt `number`."""
        text = f"Number {number}. " + "Tell me of the harbour and of its ferries. " * 20
        messages = [{"role": "user", "content": text}]
        prompts = {CHAT: ("messages", messages), COMPLETIONS: ("prompt", text)}
        key, prompt = prompts.get(self.path, ("input", text))
        ids = {} if self.path == RESPONSES else {"return_token_ids": True}
        return {"model": MODEL, key: prompt, **ids, **self.body}

    def stopping(self, asked: Mapping[str, Any], text: str) -> dict[str, Any]:
        """`asked`, with a stop after two thirds of its answer `text`."""
        at = len(text) * 2 // 3
        return {**asked, "stop": [text[at : at + 8]]} if self.stops else {**asked}

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


_WHOLE = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
# so that so small a model does not repeat itself
_VARIED = {**_WHOLE, "frequency_penalty": 0.6}
_SEEDED = {"temperature": 1, "seed": 7}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_BOUND = {"temperature": 0, "max_tokens": LONGEST}
_RESPONSE = {"temperature": 0, "max_output_tokens": TOKENS, "ignore_eos": True}
_JSON = {"type": "json_schema", "json_schema": {"name": "tower", "schema": SCHEMA}}
_TOOL = {
    "tools": [{"type": "function", "function": {"name": "build", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "build"}},
}

KINDS: Mapping[str, Kind] = {
    "chat": Kind(CHAT, _VARIED | _STREAM),
    "chat in one piece": Kind(CHAT, _VARIED),
    "completion": Kind(COMPLETIONS, _VARIED | _STREAM),
    "completion in one piece": Kind(COMPLETIONS, _WHOLE),
    "response": Kind(RESPONSES, _RESPONSE | {"stream": True}),
    "response in one piece": Kind(RESPONSES, _RESPONSE),
    "tool": Kind(CHAT, _BOUND | _STREAM | _TOOL, _is_tower),
    "JSON schema": Kind(CHAT, _BOUND | _STREAM | {"response_format": _JSON}, _is_tower),
    "regex": Kind(
        COMPLETIONS,
        _BOUND | _STREAM | {"structured_outputs": {"regex": PATTERN}},
        lambda text: re.fullmatch(PATTERN, text) is not None,
    ),
    "logprobs": Kind(CHAT, _WHOLE | _STREAM | {"logprobs": True, "top_logprobs": 3}),
    "stop string": Kind(COMPLETIONS, _VARIED | _STREAM, stops=True),
    "adapter": Kind(CHAT, _VARIED | _STREAM | {"model": ADAPTER}, speculates=False),
    "seeded": Kind(CHAT, _WHOLE | _STREAM | _SEEDED, speculates=False),
    # vLLM makes only one greedy choice
    "two choices": Kind(CHAT, _WHOLE | _STREAM | _SEEDED | {"n": 2}, speculates=False),
}
