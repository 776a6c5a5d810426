"""A completed request has all that vLLM needs, and all that its client has sent."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.wire.inference_paths import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES
from deployments.wire.items.completed import completed
from deployments.wire.items.kinds import FORMS, first_fault
from tests.deployments.prompt.all_shapes import KNOWN

PATHS = sorted(FORMS)
FIELDS = """
annotations arguments call_id content format function id input is_error json_schema messages name
output parameters reasoning refusal role status summary system text tool_calls tool_use_id tools
type
"""
TYPES = """
assistant function function_call function_call_output image input_image input_text message
namespace output_text reasoning reasoning_text refusal system text tool_result tool_use user
"""
NAMES, WORDS = st.sampled_from(FIELDS.split()), st.sampled_from(TYPES.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=5),
    max_leaves=20,
)
BODIES = st.dictionaries(NAMES, JSON, max_size=5)


def item(path: str, **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = completed(path, {"input": [given]})["input"][0]
    return made


def message(path: str, **given: Any) -> dict[str, Any]:
    made: dict[str, Any] = completed(path, {"messages": [given]})["messages"][0]
    return made


@given(path=st.sampled_from(PATHS), fields=BODIES)
def test_any_body_is_completed_once_and_stays_as_it_was(path: str, fields: dict[str, Any]) -> None:
    before = copy.deepcopy(fields)
    once = completed(path, fields)
    assert completed(path, once) == once
    assert fields == before


@given(path=st.sampled_from(PATHS), fields=BODIES)
def test_any_body_has_a_fault_of_whole_sentences_or_none(path: str, fields: dict[str, Any]) -> None:
    fault = first_fault(path, fields)
    assert fault is None or (fault.field in fields and fault.message.endswith("."))


@pytest.mark.parametrize("name", sorted(KNOWN.keys() - {"chat: more fields in a message"}))
def test_completing_a_valid_request_keeps_it_valid(name: str) -> None:
    path, fields = KNOWN[name]
    assert first_fault(path, fields) is None
    assert first_fault(path, completed(path, fields)) is None


@pytest.mark.parametrize("path", PATHS)
def test_nulls_are_removed_from_a_body(path: str) -> None:
    fields = {
        "n": None,
        "truncation": None,
        "text": {"format": None},
        "reasoning": {"effort": None},
    }
    assert completed(path, fields) == {"text": {}, "reasoning": {}}


def test_nulls_in_client_data_are_kept() -> None:
    schema = {"type": "object", "properties": {"a": {"default": None}}}
    fields = {
        "chat_template_kwargs": {"mood": None},
        "metadata": {"a": None},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}],
    }
    assert completed(CHAT, fields) == fields


def test_an_answer_without_a_type_becomes_one_with_its_whole_text() -> None:
    parts = [
        {"type": "output_text", "text": "one, "},
        {"type": "output_text", "text": "two. "},
        {"type": "refusal", "refusal": "No more."},
    ]
    assert item(RESPONSES, role="assistant", content=parts) == {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "one, two. No more.", "annotations": []}],
    }


@pytest.mark.parametrize("content", ["Hi", [{"type": "output_text", "text": "Hi"}]])
def test_an_unfinished_answer_stays_unfinished(content: Any) -> None:
    assert item(RESPONSES, role="assistant", content=content, status="incomplete")["status"] == (
        "incomplete"
    )


def test_a_thought_has_all_of_its_parts_or_its_summaries() -> None:
    parts = [{"type": "reasoning_text", "text": each} for each in ("one", "two")]
    summaries = [{"type": "summary_text", "text": each} for each in ("first", "second")]
    thought = item(RESPONSES, type="reasoning", content=parts, summary=summaries)
    assert thought["content"] == [{"type": "reasoning_text", "text": "one\ntwo"}]
    thought = item(RESPONSES, type="reasoning", content=None, summary=summaries)
    assert thought["content"] == [{"type": "reasoning_text", "text": "first\nsecond"}]
    assert item(RESPONSES, type="reasoning") == {"type": "reasoning", "summary": [], "content": []}


def test_an_image_in_a_result_has_the_detail_that_vllm_needs() -> None:
    image = {"type": "input_image", "image_url": "data:", "file_id": None}
    result = item(RESPONSES, type="function_call_output", call_id="1", output=[image], id="fo_1")
    assert result == {
        "type": "function_call_output",
        "call_id": "1",
        "output": [{"type": "input_image", "image_url": "data:", "detail": "auto"}],
    }


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
def test_the_result_of_a_failed_tool_starts_with_the_failure(path: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "no such file"}
    blocks = [{"type": "text", "text": "no such file"}]
    for content, marked in (
        ("no such file", "Error:\nno such file"),
        ("", "Error:"),
        (None, "Error:"),
        (blocks, [{"type": "text", "text": "Error:"}, *blocks]),
    ):
        failed = {**result, "content": content, "is_error": True}
        assert message(path, role="user", content=[failed])["content"][0]["content"] == marked
    fine = message(path, role="user", content=[{**result, "is_error": False}])
    assert fine["content"][0] == result


@pytest.mark.parametrize("shape", [{}, {"parameters": None}, {"parameters": {}}])
def test_a_function_without_parameters_takes_an_empty_object(shape: dict[str, Any]) -> None:
    empty = {"type": "object", "properties": {}}
    function = {"type": "function", "name": "f"}
    tools = completed(RESPONSES, {"tools": [{**function, **shape}]})["tools"]
    assert tools == [{**function, "parameters": empty}]
    space = {"type": "namespace", "name": "s", "tools": [{**function, **shape}]}
    tools = completed(RESPONSES, {"tools": [space]})["tools"]
    assert tools == [{**space, "tools": [{**function, "parameters": empty}]}]
    chat = {"type": "function", "function": {"name": "f", **shape}}
    tools = completed(CHAT, {"tools": [chat]})["tools"]
    assert tools == [{"type": "function", "function": {"name": "f", "parameters": empty}}]


@pytest.mark.parametrize("word", ["$ref", "anyOf", "oneOf", "allOf", "enum", "const"])
def test_a_schema_that_says_what_it_takes_is_not_changed(word: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {word: []}}}
    assert completed(CHAT, {"tools": [tool]})["tools"] == [tool]


def test_a_refusal_with_an_answer_is_a_part_of_it() -> None:
    refused = {"type": "text", "text": "No."}
    made = message(CHAT, role="assistant", content="Hm.", refusal="No.")
    assert made["content"] == [{"type": "text", "text": "Hm."}, refused]
    assert message(CHAT, role="assistant", content=None, refusal="No.")["content"] == "No."
    part = {"type": "refusal", "refusal": "No."}
    assert message(CHAT, role="assistant", content=[part])["content"] == [refused]


def test_results_of_unsupported_tools_are_not_requested() -> None:
    included = ["web_search_call.action.sources", "reasoning.encrypted_content"]
    found = completed(RESPONSES, {"input": "a", "include": included})
    assert found["include"] == included[1:]


@pytest.mark.parametrize(("tier", "kept"), [("fast", False), ("ultrafast", False), ("flex", True)])
def test_an_engine_gets_no_tier_that_it_does_not_know(tier: str, kept: bool) -> None:
    found = completed(RESPONSES, {"input": "a", "service_tier": tier})
    assert ("service_tier" in found) == kept


def test_deeply_nested_namespaces_do_not_exceed_the_recursion_limit() -> None:
    tool: dict[str, Any] = {"type": "function", "name": "f"}
    for _ in range(5000):
        tool = {"type": "namespace", "name": "n", "tools": [tool]}
    assert completed(RESPONSES, {"input": "a", "tools": [tool]})["tools"][0]["name"] == "n"
