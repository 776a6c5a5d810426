"""A refusal names the field that the client sent, whatever vLLM has made of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from deployments.engine.vllm.constraints.constraint_fields import (
    Sent,
    field_of,
    remember_fields,
    sent_to_chat,
    sent_to_responses,
)

SMALL = {"type": "object", "properties": {"a": {"type": "string"}}}
HUGE = {"type": "array", "maxItems": 10**9}


def schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def flat_tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": parameters}


def chat(**fields: Any) -> Sent:
    return sent_to_chat(
        ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], **fields)
    )


def completion(**fields: Any) -> Sent:
    return sent_to_chat(CompletionRequest(prompt="hi", **fields))


def response(**fields: Any) -> Sent:
    return sent_to_responses(ResponsesRequest(input="hi", **fields))


TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "a{1,5}"}}
# What the client sent, then the constraint that vLLM makes of it.
CASES: dict[str, tuple[Sent, str, Any, str]] = {
    "a choice": (
        completion(structured_outputs={"choice": ["a", "b"]}),
        *("choice", ["a", "b"], "structured_outputs.choice"),
    ),
    "a schema of structured_outputs": (
        chat(structured_outputs={"json": SMALL}),
        *("json", SMALL, "structured_outputs.json"),
    ),
    "that of a response": (
        response(structured_outputs={"json": SMALL}),
        *("json", SMALL, "structured_outputs.json"),
    ),
    "a schema of a completion": (
        completion(response_format=schema_format(SMALL)),
        *("json", SMALL, "response_format"),
    ),
    "a schema of a chat with tools": (
        chat(response_format=schema_format(HUGE), tools=[tool("f", SMALL)]),
        *("structural_tag", "{}", "response_format"),
    ),
    "a format of a response": (
        response(text={"format": {"type": "json_schema", "name": "x", "schema": SMALL}}),
        *("json", SMALL, "text.format"),
    ),
    "the only tool": (
        chat(tools=[tool("f", SMALL)], tool_choice="required"),
        *("json", {"type": "array"}, "tools[0].function.parameters"),
    ),
    "the tool that is huge": (
        chat(tools=[tool("f", SMALL), tool("g", HUGE)], tool_choice="required"),
        *("json", {"anyOf": []}, "tools[1].function.parameters"),
    ),
    "the tool that is asked for by name": (
        chat(
            tools=[tool("f", SMALL), tool("g", SMALL)],
            tool_choice={"type": "function", "function": {"name": "g"}},
        ),
        *("structural_tag", "{}", "tools[1].function.parameters"),
    ),
    "the tool of a response that is huge": (
        response(
            tools=[{"type": "web_search"}, flat_tool("f", SMALL), flat_tool("g", HUGE)],
            tool_choice="required",
        ),
        *("json", {"anyOf": []}, "tools[2].parameters"),
    ),
    "the tool of a response that is asked for by name": (
        response(
            tools=[flat_tool("f", SMALL), flat_tool("g", SMALL)],
            tool_choice={"type": "function", "name": "g"},
        ),
        *("json", SMALL, "tools[1].parameters"),
    ),
    "tools that only together take too long": (
        chat(tools=[tool("f", SMALL), tool("g", SMALL)], tool_choice="required"),
        *("json", {"anyOf": []}, "tools"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_constraint_is_named_by_the_field_that_it_came_from(case: str) -> None:
    sent, kind, constraint, field = CASES[case]
    assert sent.field_of(kind, constraint) == field


def test_a_structural_tag_is_named_by_the_field_that_it_came_from() -> None:
    sent = chat(response_format=TAG)
    assert sent.tag is not None
    assert json.loads(sent.tag)["format"]["pattern"] == "a{1,5}"
    assert sent.field_of("structural_tag", sent.tag) == "response_format"
    sent = chat(structured_outputs={"structural_tag": json.dumps(TAG)})
    field = sent.field_of("structural_tag", json.dumps(TAG))
    assert field == "structured_outputs.structural_tag"


class Serving:
    """As vLLM's: it asks its engine at once, or when the first event of a stream is asked for."""

    async def create_responses(self, request: Any) -> Any:
        return self.events() if request.stream else field_of("json", SMALL)

    async def events(self) -> AsyncGenerator[str, None]:
        yield field_of("json", SMALL)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_field_is_known_in_whichever_task_the_answer_is_made(stream: bool) -> None:
    serving = Serving()
    remember_fields(SimpleNamespace(openai_serving_responses=serving))
    text = {"format": {"type": "json_schema", "name": "x", "schema": SMALL}}
    request = ResponsesRequest(input="hi", text=text, stream=stream)
    answer = await asyncio.create_task(serving.create_responses(request))
    assert ([one async for one in answer] if stream else [answer]) == ["text.format"]
