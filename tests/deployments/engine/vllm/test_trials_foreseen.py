"""A gateway foresees whether an engine may try a request's constraint."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from deployments.wire.plain_constraints import KINDS, is_plain, needs_trial

PLAIN = {"type": "object", "properties": {"a": {"type": "string"}}}
SLOW = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 255}}}
TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "a{1,5}"}}
ANY = (
    {"structured_outputs": {"choice": ["yes", "no"]}},
    {"structured_outputs": {"choice": ["x" * 5000]}},
    {"structured_outputs": {"regex": "a"}},
    {"structured_outputs": {"grammar": 'root ::= "a"'}},
    {"structured_outputs": {"json": PLAIN}},
    {"structured_outputs": {"json": SLOW}},
    {"structured_outputs": {"json": "{}"}},
    {"structured_outputs": {"json_object": True}},
)
FORMATS: tuple[dict[str, Any], ...] = (
    *({"type": "json_schema", "json_schema": {"name": "x", "schema": of}} for of in (PLAIN, SLOW)),
    {"type": "json_object"},
    {"type": "text"},
    TAG,
)
TEXTS = (
    *({"type": "json_schema", "name": "x", "schema": of} for of in (PLAIN, SLOW)),
    {"type": "json_object"},
    {"type": "text"},
)
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def may_be_tried(request: Any) -> bool:
    """As the engine's gate judges it."""
    structured = request.to_sampling_params(100, {}).structured_outputs
    return structured is not None and not all(
        is_plain(kind, getattr(structured, kind)) for kind in KINDS
    )


@pytest.mark.parametrize("fields", [*ANY, *({"response_format": of} for of in FORMATS)])
def test_trials_of_chat_and_completion_requests_are_foreseen(fields: dict[str, Any]) -> None:
    foreseen = needs_trial(fields)
    assert foreseen == may_be_tried(ChatCompletionRequest(**CHAT, **fields))
    assert foreseen == may_be_tried(CompletionRequest(prompt="hi", **fields))


@pytest.mark.parametrize("fields", [*ANY, *({"text": {"format": of}} for of in TEXTS)])
def test_trials_of_response_requests_are_foreseen(fields: dict[str, Any]) -> None:
    assert needs_trial(fields) == may_be_tried(ResponsesRequest(input="hi", **fields))
