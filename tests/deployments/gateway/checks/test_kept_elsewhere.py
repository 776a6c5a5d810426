"""A part that names what another service keeps is refused, with what to send instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.checks.kept_elsewhere import refuse_kept_elsewhere
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

TEXT = {"type": "text", "text": "What is in it?"}
INPUT_TEXT = {"type": "input_text", "text": "What is in it?"}
DATA = "data:image/png;base64,iVBORw0KGgo="


def chat(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "Hi."}, {"role": role, "content": [*parts]}]}


def response(*parts: Any) -> dict[str, Any]:
    return {"input": [{"type": "message", "role": "user", "content": [*parts]}]}


def result_of_tool(*parts: Any) -> dict[str, Any]:
    return {"input": [{"type": "function_call_output", "call_id": "c1", "output": [*parts]}]}


def sourced(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


@pytest.mark.parametrize(
    ("path", "fields", "remedy"),
    [
        (CHAT, chat(TEXT, {"type": "file", "file": {"file_id": "file-1"}}), "'text'"),
        (CHAT, chat({"type": "file", "file": {"file_data": "JVBERi0=", "filename": "a"}}), "text"),
        (CHAT, chat({"type": "image_file", "image_file": {"file_id": "file-1"}}), "'image_url'"),
        (CHAT, chat({"type": "image_url", "image_url": {"file_id": "file-1"}}), "'image_url'"),
        (CHAT, chat({"type": "image_url", "file_id": "file-1"}), "'image_url'"),
        (CHAT, chat({"type": "input_audio", "input_audio": {"file_id": "f"}}), "'input_audio'"),
        (CHAT, chat({"type": "file", "file": {"file_id": "file-1"}}, role="tool"), "'text'"),
        (CHAT, {"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]}, "transcript"),
        (CHAT, {"messages": [[{"role": "user", "content": [{"type": "file"}]}]]}, "'text'"),
        (RESPONSES, response({"type": "input_file", "file_id": "file-1"}), "'input_text'"),
        (RESPONSES, response({"type": "input_file", "file_url": "https://a.b/c.pdf"}), "text"),
        (RESPONSES, response(INPUT_TEXT, {"type": "input_file", "file_data": "JVB"}), "'data:'"),
        (RESPONSES, response({"type": "input_image", "file_id": "file-1"}), "'input_image'"),
        (
            RESPONSES,
            response({"type": "input_image", "file_id": "file-1", "image_url": None}),
            "'input_image'",
        ),
        (RESPONSES, result_of_tool({"type": "input_file", "file_id": "file-1"}), "'input_text'"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "item itself"),
        (RESPONSES, {"input": [{"id": "msg_1"}]}, "item itself"),
        (RESPONSES, {"input": [{"id": "rs_1", "type": None}]}, "item itself"),
        (EMBEDDINGS, chat({"type": "file", "file": {"file_id": "file-1"}}), "'text'"),
        ("/tokenize", chat({"type": "file", "file": {"file_id": "file-1"}}), "'text'"),
        (MESSAGES, chat({"type": "document", "source": {"type": "text", "data": "a"}}), "'text'"),
        (MESSAGES, chat(sourced({"type": "file", "file_id": "file-1"})), "'image'"),
        (
            MESSAGES,
            chat({"type": "tool_result", "content": [sourced({"type": "file", "file_id": "f"})]}),
            "'image'",
        ),
    ],
)
def test_a_reference_to_a_stored_item_is_rejected_with_the_remedy(
    path: str, fields: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_kept_elsewhere(path, fields)
    error = refused.value
    assert (error.status, error.code) == (400, "field_not_allowed")
    assert error.param in fields
    assert f"'{error.param}'" in error.message and remedy in error.message
    assert_sentences(error.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, chat(TEXT, {"type": "image_url", "image_url": {"url": DATA}})),
        (CHAT, chat({"type": "image_url", "image_url": {"url": DATA, "file_id": "file-1"}})),
        (CHAT, chat({"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}})),
        (CHAT, chat({"type": "text", "text": "a", "file_id": "of another service"})),
        (CHAT, {"messages": [{"role": "assistant", "content": "Hi.", "audio": {"id": "a"}}]}),
        (CHAT, {"messages": [{"role": "assistant", "content": "Hi.", "audio": None}]}),
        (CHAT, {"messages": [{"role": "assistant", "content": None, "audio": None}]}),
        (CHAT, {"messages": [{"role": "user", "content": "item_reference", "id": "msg_1"}]}),
        (RESPONSES, {"input": "file-1"}),
        (RESPONSES, response(INPUT_TEXT, {"type": "input_image", "image_url": DATA})),
        (
            RESPONSES,
            response({"type": "input_image", "image_url": DATA, "file_id": None}),
        ),
        (RESPONSES, response({"type": "input_image", "image_url": DATA, "file_id": "file-1"})),
        (RESPONSES, {"input": [{"role": "user", "content": "Hi.", "id": "msg_1"}]}),
        (RESPONSES, {"input": [{"id": "fc_1", "type": "function_call", "name": "look"}]}),
        (
            RESPONSES,
            response({"type": "output_text", "text": "a", "annotations": [{"file_id": "f"}]}),
        ),
        (COMPLETIONS, {"prompt": "file-1"}),
        (EMBEDDINGS, {"input": ["a", "b"]}),
        (EMBEDDINGS, {"input": [[1, 2], [3]]}),
        (MESSAGES, chat(sourced({"type": "base64", "media_type": "image/png", "data": "AA"}))),
        (MESSAGES, chat({"type": "tool_result", "content": "a"})),
        (CHAT, chat({"type": "document", "text": "for a model that has such parts"})),
    ],
)
def test_a_part_that_contains_its_data_passes(path: str, fields: dict[str, Any]) -> None:
    refuse_kept_elsewhere(path, fields)


NAMES = ("type", "id", "role", "content", "audio", "file_id", "image_url", "uuid", "url", "output")
TEXTS = st.sampled_from(["", "file", "input_file", "input_image", "image_url", "item_reference"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
)


@given(
    fields=st.fixed_dictionaries({}, optional={"messages": ANYTHING, "input": ANYTHING}),
    path=st.sampled_from([CHAT, RESPONSES, EMBEDDINGS]),
)
def test_a_request_with_any_fields_passes_or_is_refused(fields: dict[str, Any], path: str) -> None:
    try:
        refuse_kept_elsewhere(path, fields)
    except ApiError as refused:
        assert refused.param in fields


def test_a_request_that_is_nested_deeply_passes() -> None:
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    refuse_kept_elsewhere(CHAT, {"messages": nested})


async def test_a_gateway_does_not_forward_a_file_reference() -> None:
    engine = FakeEngine()
    fields = chat({"type": "file", "file": {"file_id": "file-1"}})
    async with gateway_before(engine) as front, front.post(**fields) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "messages"
    assert not engine.bodies
