"""Kinds of request whose answers another engine resumes. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
_PENALTIES = {"presence_penalty": 0.7, "frequency_penalty": 0.7, "repetition_penalty": 1.3}

# The SamplingParams of each kind. Token ids here exist in every vocabulary.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.9, "seed": 7},
    "penalties": _PENALTIES,
    "min_tokens": {"min_tokens": 10, "stop_token_ids": [126, 231, 255]},
    "bad_words": {"bad_words": ["U", "S"]},
    "seeded with penalties": {"temperature": 1.0, "seed": 11, **_PENALTIES},
    "logprobs": {"logprobs": 2},
    "regex": {"structured": {"regex": "(ab|cd|ef){4}[0-9]{3}"}},
    "json": {"structured": {"json": _SCHEMA}},
    "seeded regex": {"temperature": 1.0, "seed": 5, "structured": {"regex": "[a-z]{12}"}},
}
