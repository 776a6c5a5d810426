"""Fields outside of the table are refused by name, and so are values beyond its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.fleet.fleet import GatewaySettings
from deployments.fleet.pool import Pool
from deployments.gateway.checks.field_bounds import refuse_beyond_bounds, refuse_unknown_fields
from deployments.gateway.checks.request_checks import check_fields
from deployments.gateway.intake import request_body
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.field_table import (
    HARMLESS,
    MAX_ALLOWED_TOKEN_IDS,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_STOP_CHARACTERS,
    REFUSED,
    TAKEN,
    HarmlessField,
    RefusedField,
    TakenField,
    taken_by,
)
from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBED,
    EMBEDDINGS,
    INFERENCE_PATHS,
    MESSAGES,
    RESPONSES,
    TRANSCRIPTIONS,
)
from observability.traces.request_record import RequestFacts, RequestRecord
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "look", "parameters": SCHEMA}


def refusal(
    check: Callable[[str, dict[str, Any]], None], path: str, fields: dict[str, Any]
) -> ApiError | None:
    try:
        check(path, fields)
    except ApiError as error:
        assert error.status == 400
        assert_sentences(error.message)
        return error
    return None


@pytest.mark.parametrize(
    ("path", "fields", "remedy"),
    [
        (RESPONSES, {"conversation": "conv_abc"}, "'input'"),
        (RESPONSES, {"conversation": {"id": "conv_123"}}, "'input'"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "'instructions'"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "'input'"),
        (RESPONSES, {"background": True}, "'stream'"),
        (RESPONSES, {"background": "true"}, "'stream'"),
        (RESPONSES, {"max_tokens": 5}, "'max_output_tokens'"),
        (RESPONSES, {"response_format": {"type": "json_object"}}, "'format'"),
        (RESPONSES, {"n": 2}, "several requests"),
        (MESSAGES, {"response_format": {"type": "json_object"}}, "'output_config'"),
        (RESPONSES, {"moderation": {"model": "x"}}, "Omit it"),
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://a.b"}]}, "'tools'"),
        (MESSAGES, {"container": "container_1"}, "Omit it"),
        (MESSAGES, {"output_format": {"type": "json_schema", "schema": SCHEMA}}, "'output_config'"),
        (MESSAGES, {"stop": ["a"]}, "'stop_sequences'"),
        (MESSAGES, {"compaction": {"type": "enabled"}}, "summary"),
        (MESSAGES, {"inference_geo": "us"}, "Omit it"),
        (MESSAGES, {"min_p": 0.5}, "Omit it"),
        (CHAT, {"functions": [FUNCTION]}, "'tools'"),
        (CHAT, {"function_call": {"name": "look"}}, "'tool_choice'"),
        (CHAT, {"web_search_options": {"search_context_size": "low"}}, "search results"),
        (CHAT, {"modalities": ["text", "audio"]}, "['text']"),
        (CHAT, {"audio": {"voice": "alloy", "format": "wav"}}, "Omit it"),
        (CHAT, {"guided_json": SCHEMA}, "'response_format'"),
        (CHAT, {"guided_regex": "a+"}, "'structured_outputs'"),
        (CHAT, {"guided_choice": ["yes", "no"]}, "'choice'"),
        (CHAT, {"guided_whitespace_pattern": " ?"}, "'structured_outputs'"),
        (CHAT, {"guided_of_tomorrow": " ?"}, "'structured_outputs'"),
        (CHAT, {"enable_thinking": True}, "'chat_template_kwargs'"),
        (CHAT, {"thinking": {"type": "disabled"}}, "'chat_template_kwargs'"),
        (CHAT, {"extra_body": {"top_k": 1}}, "at the top level"),
        (CHAT, {"kv_transfer_params": {}}, "Omit it"),
        (CHAT, {"ec_transfer_params": {"a": 1}}, "Omit it"),
        (CHAT, {"max_token": 5}, "Did you mean 'max_tokens'"),
        (CHAT, {"an unknown field": {"a": 1}}, "Omit it"),
        (CHAT, {"": 1}, "Omit it"),
        (COMPLETIONS, {"guided_grammar": 'root ::= "a"'}, "'grammar'"),
        (COMPLETIONS, {"best_of": 3}, "'n'"),
        (COMPLETIONS, {"best_of": 3, "n": 2}, "'n'"),
        (COMPLETIONS, {"best_of": 1, "n": 2}, "'n'"),
        (COMPLETIONS, {"best_of": "3", "n": 1}, "'n'"),
        (COMPLETIONS, {"messages": [{"role": "user", "content": "Hi."}]}, "Omit it"),
        (EMBEDDINGS, {"normalize": False, "late_chunking": True}, "Omit it"),
        (EMBED, {"texts": ["a"], "output_dimensions": 5}, "'output_dimension'"),
        (TRANSCRIPTIONS, {"known_speaker_names[]": "agent"}, "Omit it"),
        ("/tokenize", {"prompt": "Hi.", "guided_json": SCHEMA}, "'json'"),
        ("/rerank", {"top_k": 5}, "'top_n'"),
    ],
)
def test_what_an_engine_would_ignore_is_refused_with_the_remedy(
    path: str, fields: dict[str, Any], remedy: str
) -> None:
    error = refusal(refuse_unknown_fields, path, fields)
    assert error is not None
    assert error.code == "field_not_allowed"
    assert error.param in fields
    assert f"'{error.param}'" in error.message and remedy in error.message


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"conversation": None, "prompt": None, "tools": [], "store": True}),
        (RESPONSES, {"conversation": "", "background": False, "previous_response_id": None}),
        (RESPONSES, {"background": "false", "store": False, "metadata": {"a": "b"}}),
        (RESPONSES, {"include": ["reasoning.encrypted_content"], "prompt_cache_key": "a"}),
        (RESPONSES, {"stream": True, "stream_options": {"include_obfuscation": False}}),
        (RESPONSES, {"client_metadata": {"a": "b"}, "text": {"verbosity": "low"}}),
        (RESPONSES, {"n": 1, "response_format": {"type": "text"}}),
        (CHAT, {"functions": [], "function_call": None, "guided_json": None}),
        (CHAT, {"function_call": "none"}),
        (CHAT, {"function_call": "auto"}),
        (CHAT, {"guided_choice": [], "guided_regex": "", "store": True}),
        (CHAT, {"modalities": ["text"], "audio": None, "web_search_options": {}}),
        (CHAT, {"prediction": {"type": "content", "content": "a"}, "verbosity": "low"}),
        (CHAT, {"safety_identifier": "a", "prompt_cache_retention": "24h", "user": "me"}),
        (CHAT, {"service_tier": "auto", "structured_outputs": {"choice": ["yes", "no"]}}),
        (CHAT, {"kv_transfer_params": None, "of tomorrow": None, "of yesterday": []}),
        (COMPLETIONS, {"prompt": "Hi.", "best_of": 1}),
        (COMPLETIONS, {"prompt": "Hi.", "best_of": 2, "n": 2}),
        (COMPLETIONS, {"prompt": "Hi.", "best_of": 1, "n": None}),
        (MESSAGES, {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}),
        (MESSAGES, {"metadata": {"user_id": "a"}, "betas": ["a"], "anthropic_version": "x"}),
        (MESSAGES, {"service_tier": "standard_only", "inference_geo": "global"}),
        (COUNT_TOKENS, {"messages": [], "max_tokens": 5, "temperature": 1, "metadata": {}}),
        ("/no such path", {"of yesterday": 1}),
    ],
)
def test_fields_without_an_effect_pass(path: str, fields: dict[str, Any]) -> None:
    refuse_unknown_fields(path, fields)


ROWS: list[TakenField | HarmlessField | RefusedField] = [*TAKEN, *HARMLESS, *REFUSED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names[0])
def test_a_row_is_explained_in_whole_sentences(
    row: TakenField | HarmlessField | RefusedField,
) -> None:
    match row:
        case TakenField():
            bound = f" This is bounded by something. {row.bound}" if row.bound else ""
            assert_sentences(f"{row.costs}{bound}")
        case HarmlessField():
            assert_sentences(row.why)
        case RefusedField():
            assert_sentences(f"'a' {row.why}. {row.remedy}")


@pytest.mark.parametrize("path", INFERENCE_PATHS)
def test_a_path_has_each_field_once(path: str) -> None:
    names = [name for row in ROWS if path in row.paths for name in row.names]
    assert "model" in names
    assert sorted(set(names)) == sorted(names)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMES = sorted({name for row in ROWS for name in row.names})


@given(
    fields=st.dictionaries(st.sampled_from(NAMES) | st.text(), ANYTHING, max_size=5),
    path=st.sampled_from(list(INFERENCE_PATHS)),
)
def test_a_request_with_any_fields_passes_or_is_refused(fields: dict[str, Any], path: str) -> None:
    for check in (refuse_unknown_fields, refuse_beyond_bounds):
        try:
            check(path, fields)
        except ApiError as refused:
            assert refused.status == 400
            assert refused.param in {name[:100] for name in fields}


LIMITS = GatewaySettings()
# For each bounded field whose bound a gateway checks without the prompt: just within, and beyond.
BOUNDS: dict[str, tuple[Any, Any]] = {
    "logit_bias": (
        {str(each): 1 for each in range(MAX_LOGIT_BIAS)},
        {str(each): 1 for each in range(MAX_LOGIT_BIAS + 1)},
    ),
    "allowed_token_ids": (
        list(range(MAX_ALLOWED_TOKEN_IDS)),
        list(range(MAX_ALLOWED_TOKEN_IDS + 1)),
    ),
    "logprob_token_ids": (
        list(range(MAX_LOGPROB_TOKEN_IDS)),
        list(range(MAX_LOGPROB_TOKEN_IDS + 1)),
    ),
    "stop": ("a" * MAX_STOP_CHARACTERS, ["a" * MAX_STOP_CHARACTERS, "a"]),
    "stop_sequences": (["a"] * LIMITS.max_list_items, ["a"] * (LIMITS.max_list_items + 1)),
    "stop_token_ids": ([1] * LIMITS.max_list_items, [1] * (LIMITS.max_list_items + 1)),
    "bad_words": (["a" * MAX_STOP_CHARACTERS], ["a" * (MAX_STOP_CHARACTERS + 1)]),
    "repetition_detection": (
        {"max_pattern_size": 64, "min_count": 4},
        {"max_pattern_size": 65, "min_count": 2},
    ),
    "n": (LIMITS.max_n, LIMITS.max_n + 1),
    "priority": (0, 1),
    "vllm_xargs": ({}, {"steer": 1}),
    "media_io_kwargs": ({"video": {"num_frames": 8}}, {"video": {"backend": "deepstream"}}),
    "mm_processor_kwargs": ({"max_pixels": 2**20}, {"max_pixels": 2**40}),
    "prompt_embeds": (["a"] * LIMITS.max_sequences, ["a"] * (LIMITS.max_sequences + 1)),
    "data": (["a"] * LIMITS.max_sequences, ["a"] * (LIMITS.max_sequences + 1)),
}
# Bounds of lists of prompts.
for name in ("prompt", "input", "documents", "items", "text_2", "data_2", "texts", "images"):
    item = "data:image/png;base64,AAAA" if name == "images" else "a"
    BOUNDS[name] = ([item] * LIMITS.max_sequences, [item] * (LIMITS.max_sequences + 1))
BOUNDS["inputs"] = ([{}] * LIMITS.max_sequences, [{}] * (LIMITS.max_sequences + 1))
IN_GATEWAY = {
    f"deployments.gateway.{name}"
    for name in (
        *("checks.field_bounds.refuse_beyond_bounds", "checks.engine_fields.refuse_engine_fields"),
        *("checks.answer_size.refuse_many_sequences", "checks.media_kwargs.refuse_media_kwargs"),
    )
} | {"deployments.fleet.fleet.GatewaySettings.max_list_items"}
CHECKED = [
    (path, name)
    for path in INFERENCE_PATHS
    for name, row in taken_by(path).items()
    if IN_GATEWAY & set(row.enforced)
    and name not in ("use_beam_search", "min_tokens")  # bounded by other fields
    and not INFERENCE_PATHS[path].is_form
]


def checked(path: str, fields: dict[str, Any]) -> None:
    """What a gateway checks before the prompt is known."""
    request_body.parse(request_body.extended(b'{"model": "m"}', fields), LIMITS.max_list_items)
    record = RequestRecord(RequestFacts("id", "tenant", path), 0.0)
    check_fields(record, fields, Pool.model_validate({"model": "m"}), LIMITS)


@pytest.mark.parametrize(("path", "name"), CHECKED)
def test_a_value_beyond_its_bound_is_refused_and_the_largest_is_not(path: str, name: str) -> None:
    """A bounded row without an example here fails."""
    within, beyond = BOUNDS[name]
    checked(path, {name: within})
    with pytest.raises(ApiError) as refused:
        checked(path, {name: beyond})
    assert refused.value.status in (400, 403)
    assert refused.value.param in (name, None)
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    "value",
    [
        {"max_pattern_size": 512, "min_pattern_size": 128, "min_count": 2},
        {"max_pattern_size": "512", "min_count": 2},
        {"max_pattern_size": 512.0, "min_count": "2"},
        {"max_pattern_size": " 5_12 ", "min_count": 2},
        {"max_pattern_size": 1, "min_pattern_size": 512, "min_count": 2},
        {"max_pattern_size": 64, "min_count": 5},
        {"max_pattern_size": 2, "min_count": "1e9"},
        {"max_pattern_size": 2, "min_count": 10**9},
        {"max_pattern_size": "9" * 4000, "min_count": 2},
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_large_repetition_detection_patterns_are_rejected(path: str, value: dict[str, Any]) -> None:
    error = refusal(refuse_beyond_bounds, path, {"repetition_detection": value})
    if value["min_count"] == "1e9":  # vLLM reads no such number
        assert error is None
    else:
        assert error is not None and error.param == "repetition_detection"
        assert len(error.message) < 300


@pytest.mark.parametrize("value", [None, [], 5, "512", {"max_pattern_size": 20, "min_count": 4}])
def test_other_values_of_repetition_detection_are_the_engines_to_judge(value: Any) -> None:
    refuse_beyond_bounds(CHAT, {"repetition_detection": value})


async def test_a_gateway_asks_no_engine_for_what_it_would_ignore() -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        for fields in (
            {"guided_choice": ["yes", "no"]},
            {"of_yesterday": 1},
            {"logit_bias": BOUNDS["logit_bias"][1]},
            {"repetition_detection": BOUNDS["repetition_detection"][1]},
        ):
            async with front.post(**fields) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["param"] == next(iter(fields))
        assert not engine.bodies
        async with front.post(metadata={"a": "b"}, of_yesterday=None) as answer:
            assert answer.status == 200
