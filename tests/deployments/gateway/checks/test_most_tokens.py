"""How many tokens a request may use, which budgets reserve."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.gateway.checks.most_tokens import most_tokens
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt
from deployments.gateway.intake.request_options import RequestOptions
from observability.traces.request_record import RequestFacts, RequestRecord
from router.choice.policies import PlacementRequest
from tests.fakes.front import TENANT
from tests.fakes.limited_front import LENGTH


def request(path: str, known: bool = True, prompt_tokens: int = 10, **fields: Any) -> PoolRequest:
    record = RequestRecord(RequestFacts("id", TENANT, path), 0.0)
    engine = object.__new__(EngineRequest)
    for name, value in (("path", path), ("body", b"x" * 100), ("record", record)):
        object.__setattr__(engine, name, value)
    prompt = Prompt(PlacementRequest(prompt_tokens), known, None, 0.0, 0.0)
    return PoolRequest(engine, fields, {}, RequestOptions("interactive", "allow", None), prompt)


CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.mark.parametrize(
    ("path", "fields", "most"),
    [
        (CHAT, {"max_tokens": 5}, 15),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 7}, 17),
        (CHAT, {"max_tokens": 5, "n": 3}, 25),
        # vLLM reads a number from it
        (CHAT, {"max_tokens": 5, "n": "3"}, 25),
        (CHAT, {}, 1000),
        (CHAT, {"max_tokens": 10**9}, 1000),
        (CHAT, {"n": 3}, 10 + 3 * 990),
        (CHAT, {"max_tokens": "many"}, 1000),
        # a field of another path says nothing
        (CHAT, {"max_output_tokens": 1}, 1000),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": "400"}, 410),
        (COMPLETION, {"max_tokens": "400"}, 410),
        (COMPLETION, {"max_tokens": 400.0}, 410),
        ("/v1/responses", {"max_tokens": 1}, 1000),
        (COMPLETION, {}, 26),
        (COMPLETION, {"prompt": ["a", "b"], "max_tokens": 5, "n": 2}, 30),
        (COMPLETION, {"prompt": [1, 2, 3], "max_tokens": 5}, 15),
        (COMPLETION, {"prompt": [[1], [2]], "max_tokens": 5}, 20),
        ("/v1/responses", {"max_output_tokens": 5}, 15),
        ("/v1/embeddings", {}, 10),
        ("/tokenize", {}, 0),
        ("/v1/messages", {"max_tokens": 5, "n": 3}, 15),
        ("/v1/messages/count_tokens", {"max_tokens": 5}, 0),
        ("/v2/rerank", {"documents": ["a", "b"], "max_tokens": 5}, 10),
    ],
)
def test_a_request_can_use_its_prompt_and_all_it_may_generate(
    path: str, fields: dict[str, Any], most: int
) -> None:
    assert most_tokens(request(path, **fields), LENGTH) == most


def test_an_untokenized_prompt_counts_for_more_tokens_than_it_can_have() -> None:
    assert most_tokens(request(CHAT, known=False, max_tokens=5), LENGTH) == 100 + 512 + 5
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    asked = request(CHAT, known=False, max_tokens=5, messages=image)
    assert most_tokens(asked, LENGTH) == LENGTH


@pytest.mark.parametrize(
    ("documents", "most"),
    # 100 bytes of body, its query for each document but the first, and a template for each
    [(1, 100 + 512), (2, 100 + 10 + 2 * 512), (3, 100 + 2 * 10 + 3 * 512)],
)
def test_a_query_counts_with_each_document(documents: int, most: int) -> None:
    fields: dict[str, Any] = {"query": "0123456789", "documents": ["a"] * documents}
    assert most_tokens(request("/v2/rerank", known=False, **fields), 10**6) == most
    assert most_tokens(request("/v2/rerank", known=False, **fields), 20) == 20 * documents


def test_all_blocks_of_messages_except_images_count_as_text() -> None:
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    image = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
    for blocks, most in (
        ([call, {"type": "thinking", "thinking": "hm"}], 100 + 512 + 5),
        ([{"type": "tool_result", "tool_use_id": "1", "content": "a"}], 100 + 512 + 5),
        ([{"type": "tool_result", "tool_use_id": "1", "content": [image]}], LENGTH),
        ([image], LENGTH),
    ):
        messages = [{"role": "user", "content": blocks}]
        asked = request("/v1/messages", known=False, max_tokens=5, messages=messages)
        assert most_tokens(asked, LENGTH) == most


def test_each_answer_to_an_untokenized_prompt_may_fill_the_context() -> None:
    """Its prompt may be a token, however long its body is."""
    assert most_tokens(request(CHAT, known=False, n=3), LENGTH) == 3 * LENGTH


def test_audio_counts_for_its_estimate_and_for_an_answer_of_any_length() -> None:
    path, audio = "/v1/audio/transcriptions", 3 * LENGTH  # an engine reads it in pieces
    for fields, most in (
        ({"max_completion_tokens": "7"}, 7),
        ({"max_completion_tokens": "7", "use_beam_search": "true", "n": "2"}, 14),
        ({"n": "2"}, LENGTH),
    ):
        asked = request(path, known=False, prompt_tokens=audio, **fields)
        assert most_tokens(asked, LENGTH) == audio + most


def test_nothing_bounds_a_request_to_a_model_of_unknown_length() -> None:
    assert most_tokens(request(CHAT), None) is None
    assert most_tokens(request(CHAT, max_tokens=5), None) == 15
    assert most_tokens(request(CHAT, max_tokens=5, n="many"), None) is None


PADDED: dict[str, Any] = {"padding": "max_length"}


@pytest.mark.parametrize(
    ("path", "fields", "inputs"),
    [
        ("/v1/embeddings", {"input": ["a"] * 512}, 512),
        ("/v1/embeddings", {"input": "a"}, 1),
        ("/v1/embeddings", {"input": [[1], [2]]}, 2),
        ("/v1/embeddings", {"messages": [{"role": "user", "content": "a"}]}, 1),
        ("/classify", {"input": ["a", "b"]}, 2),
        ("/pooling", {"input": ["a", "b"]}, 2),
        ("/v2/rerank", {"query": "a", "documents": ["a"] * 9}, 9),
        ("/score", {"text_1": "a", "text_2": ["a"] * 9}, 9),
        ("/v1/score", {"queries": ["a"], "items": ["a"] * 9}, 9),
    ],
)
def test_a_padded_input_takes_the_whole_context(
    path: str, fields: dict[str, Any], inputs: int
) -> None:
    asked = request(path, known=False, **fields, **PADDED)
    assert most_tokens(asked, LENGTH) == LENGTH * inputs
    assert most_tokens(asked, None) is None
    as_it_is = request(path, known=False, **fields, padding="do_not_pad")
    assert (most_tokens(as_it_is, LENGTH) or 0) < LENGTH * inputs


def test_only_pooling_paths_apply_padding() -> None:
    for path in (CHAT, COMPLETION, "/v2/embed", "/tokenize"):
        asked = request(path, known=False, max_tokens=5, **PADDED)
        assert most_tokens(asked, LENGTH) == most_tokens(
            request(path, known=False, max_tokens=5), LENGTH
        )


@pytest.mark.parametrize(
    "fields",
    [
        {"query": "x" * 50},
        {"query": {"content": [{"type": "text", "text": "x" * 50}]}},
        {"query": "", "instruction": "x" * 50},
        {"query": "", "chat_template_kwargs": {"instruction": "x" * 50}},
        {"query": "", "chat_template_kwargs": {"deep": {"er": ["x" * 50]}}},
    ],
)
def test_text_that_is_read_with_each_document_counts_once_per_document(
    fields: dict[str, Any],
) -> None:
    few, many = (
        most_tokens(request("/v2/rerank", known=False, documents=["a"] * count, **fields), 10**6)
        for count in (10, 110)
    )
    assert few is not None and many is not None
    assert many - few >= 100 * (50 + 512)


def test_an_image_in_a_query_takes_the_context_of_each_document() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    for query in ({"content": [image]}, [{"content": [image]}]):
        asked = request("/score", known=False, queries=query, documents=["a"] * 3)
        assert most_tokens(asked, LENGTH) == 3 * LENGTH


@pytest.mark.parametrize(
    ("fields", "most"),
    [
        ({"texts": ["a"] * 64}, 100 + 512),
        ({"texts": ["a"] * 64, "input_type": "search_query"}, 100 + 64 * 64),
        ({"inputs": [{"content": [{"type": "text", "text": "a"}]}] * 64}, 100 + 64 * 64),
        ({"images": ["data:image/png;base64,AA=="] * 2}, 2 * LENGTH),
    ],
)
def test_a_text_for_cohere_reserves_little_more_than_for_openai(
    fields: dict[str, Any], most: int
) -> None:
    assert most_tokens(request("/v2/embed", known=False, **fields), LENGTH) == most
