"""What a request asks for is read as its engine reads it; next to vLLM's own tests, with vLLM."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.intake.parameters import VOCABULARY, parameters_of
from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBEDDINGS,
    INFERENCE_PATHS,
    MESSAGES,
    RESPONSES,
)

PATHS = (*INFERENCE_PATHS, "/v1/other")


@pytest.mark.parametrize("spelled", [24, 24.0, "24", "24.0", " 24 ", "2_4", "+24", "024"])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CHAT, "max_tokens"),
        (CHAT, "max_completion_tokens"),
        (COMPLETIONS, "max_tokens"),
        (RESPONSES, "max_output_tokens"),
        (MESSAGES, "max_tokens"),
    ],
)
def test_every_spelling_of_a_number_is_read_as_that_number(
    path: str, name: str, spelled: Any
) -> None:
    assert parameters_of(path, {name: spelled}).max_tokens == 24


@pytest.mark.parametrize(
    ("path", "fields", "max_tokens"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {"max_output_tokens": 1}, None),
        (CHAT, {"max_tokens": 1, "max_completion_tokens": "4000"}, 4000),
        (CHAT, {"max_tokens": 4000, "max_completion_tokens": 1}, 1),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": None}, 5),
        (CHAT, {"max_tokens": True}, 1),
        (COMPLETIONS, {}, 16),
        (COMPLETIONS, {"max_tokens": None}, 16),
        (COMPLETIONS, {"max_completion_tokens": 5000, "max_output_tokens": 5000}, 16),
        # an echo of only the prompt generates a token
        (COMPLETIONS, {"max_tokens": 0, "echo": True}, 1),
        (RESPONSES, {}, None),
        (RESPONSES, {"max_tokens": 1}, None),
        (RESPONSES, {"max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 9}, 9),
        (MESSAGES, {"max_tokens": 7, "max_completion_tokens": 1, "max_output_tokens": 1}, 7),
        (COUNT_TOKENS, {"max_tokens": 9}, 0),
        (EMBEDDINGS, {"max_tokens": 9}, 0),
        ("/v2/rerank", {"max_tokens": 9}, 0),
    ],
)
def test_each_path_has_its_own_field_for_the_length(
    path: str, fields: dict[str, Any], max_tokens: int | None
) -> None:
    assert parameters_of(path, fields).max_tokens == max_tokens


@pytest.mark.parametrize("unreadable", ["many", "1e3", 1.5, "1.5", "", [5], {"a": 5}, "0x10"])
def test_unreadable_parameters_stand_for_the_greatest_values(unreadable: Any) -> None:
    asked = parameters_of(
        COMPLETIONS,
        {"max_tokens": unreadable, "n": unreadable, "logprobs": unreadable, "priority": unreadable},
    )
    assert (asked.max_tokens, asked.n, asked.priority) == (None, None, None)
    assert asked.logprobs == VOCABULARY
    assert asked.sequences == 1


@pytest.mark.parametrize("spelled", [True, 1, 1.0, "true", "True", "1", "yes", "on", "t", "y"])
def test_every_spelling_of_true_requests_a_stream(spelled: Any) -> None:
    assert parameters_of(CHAT, {"stream": spelled}).stream
    assert not parameters_of(EMBEDDINGS, {"stream": spelled}).stream


@pytest.mark.parametrize("spelled", [None, False, 0, "false", "0", "no", "off"])
def test_every_spelling_of_false_declines_a_stream(spelled: Any) -> None:
    assert not parameters_of(CHAT, {"stream": spelled}).stream


@pytest.mark.parametrize(
    ("path", "fields", "logprobs", "prompt_logprobs"),
    [
        (CHAT, {}, None, None),
        (CHAT, {"logprobs": True}, 0, None),
        (CHAT, {"logprobs": "true", "top_logprobs": 5}, 5, None),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, VOCABULARY, None),
        (CHAT, {"logprobs": True, "logprob_token_ids": [1, 2, 3], "top_logprobs": 1}, 3, None),
        (CHAT, {"prompt_logprobs": 4}, None, 4),
        (CHAT, {"echo": True, "logprobs": True, "top_logprobs": 2}, 2, 2),
        (CHAT, {"echo": True}, None, 0),
        (COMPLETIONS, {"logprobs": 3}, 3, None),
        (COMPLETIONS, {"logprobs": 3, "echo": "yes"}, 3, 3),
        (COMPLETIONS, {"logprobs": 3, "echo": True, "prompt_logprobs": 1}, 3, 1),
        (COMPLETIONS, {"top_logprobs": 3}, None, None),
        # vLLM refuses such a string
        (COMPLETIONS, {"logprobs": "3"}, VOCABULARY, None),
        (RESPONSES, {"top_logprobs": "3"}, None, None),
        (
            RESPONSES,
            {"top_logprobs": "3", "include": ["message.output_text.logprobs"]},
            3,
            None,
        ),
        (EMBEDDINGS, {"logprobs": 3, "prompt_logprobs": 3}, None, None),
    ],
)
def test_logprobs_are_read_from_the_fields_of_each_path(
    path: str, fields: dict[str, Any], logprobs: int | None, prompt_logprobs: int | None
) -> None:
    asked = parameters_of(path, fields)
    assert (asked.logprobs, asked.prompt_logprobs) == (logprobs, prompt_logprobs)


@pytest.mark.parametrize(
    ("path", "fields", "sequences"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 5}, 5),
        (CHAT, {"n": "5", "prompt": ["a"] * 3}, 5),
        (CHAT, {"n": " 1_0.0 "}, 10),
        (CHAT, {"n": None}, 1),
        (CHAT, {"n": 0}, 1),
        (COMPLETIONS, {"prompt": "a", "n": 2}, 2),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": [1.0, 2.0]}, 1),
        (COMPLETIONS, {"prompt": [[1, 2], [3]], "n": 4}, 8),
        (COMPLETIONS, {"prompt": ["a"] * 1024, "n": 8}, 8192),
        (COMPLETIONS, {"prompt": ["a"], "prompt_embeds": ["AAAA", "AAAA"]}, 3),
        (EMBEDDINGS, {"input": ["a", "b"], "n": 7}, 2),
        (EMBEDDINGS, {"input": [5, 6]}, 1),
        (EMBEDDINGS, {"messages": [[{"role": "user"}], [{"role": "user"}]]}, 2),
        (EMBEDDINGS, {"messages": [{"role": "user"}, {"role": "user"}]}, 1),
        (RESPONSES, {"input": [{"role": "user"}, {"role": "user"}], "n": 3}, 1),
        (MESSAGES, {"messages": [{"role": "user"}, {"role": "user"}], "n": 3}, 1),
        ("/v2/rerank", {"query": "a", "documents": ["b"] * 5}, 5),
        ("/rerank", {"query": "a", "documents": [{"content": []}] * 5, "n": 2}, 5),
        ("/v1/rerank", {"query": "a", "documents": "b"}, 1),
        ("/score", {"text_1": "a", "text_2": ["b", "c"]}, 2),
        ("/score", {"queries": ["a", "b"], "documents": ["c", "d"]}, 2),
        ("/v1/score", {"queries": "a", "items": ["b", "c", "d"]}, 3),
        ("/classify", {"input": ["a", "b"]}, 2),
        ("/pooling", {"input": [[1, 2], [3]]}, 2),
        ("/pooling", {"data": {"image": "x"}}, 1),
    ],
)
def test_every_answer_to_every_prompt_counts_as_a_sequence(
    path: str, fields: dict[str, Any], sequences: int
) -> None:
    assert parameters_of(path, fields).sequences == sequences


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMES = (
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "stream", "echo"),
    *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "include", "priority"),
    *("use_beam_search", "background", "prompt", "input", "messages", "prompt_embeds"),
)


@given(
    fields=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING)),
    path=st.sampled_from(PATHS),
)
def test_parameters_of_a_request_with_any_fields_are_valid(
    fields: dict[str, Any], path: str
) -> None:
    asked = parameters_of(path, fields)
    assert asked.sequences >= 1
    assert asked.max_tokens is None or asked.max_tokens >= 0
    assert all(n is None or n >= 0 for n in (asked.logprobs, asked.prompt_logprobs))


@pytest.mark.parametrize(
    ("fields", "repeated"),
    [
        ({"query": "abcd", "documents": ["x", "y", "z"]}, 8),
        ({"query": "\u20ac", "documents": ["x", "y"]}, 3),
        ({"query": "ab", "instruction": "cd", "documents": ["x", "y"]}, 4),
        ({"query": "abcd", "documents": "x"}, 0),
        ({"query": {"content": []}, "documents": ["x", "y"]}, 0),
        ({"documents": ["x", "y"]}, 0),
    ],
)
def test_a_query_is_read_with_each_document(fields: dict[str, Any], repeated: int) -> None:
    assert parameters_of("/v2/rerank", fields).repeated_bytes == repeated


def test_each_of_several_queries_is_read_once() -> None:
    pairs = {"queries": ["aa", "bb"], "documents": ["c", "d"]}
    assert parameters_of("/score", pairs).repeated_bytes == 0
    assert parameters_of("/score", pairs | {"queries": ["aa"]}).repeated_bytes == 2
