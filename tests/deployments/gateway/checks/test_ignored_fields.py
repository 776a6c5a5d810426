"""What an engine would ignore, and a client relies on, is refused with what to send instead."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.checks.ignored_fields import refuse_ignored_fields
from deployments.gateway.intake.errors import ApiError
from deployments.wire.inference_paths import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "look", "parameters": SCHEMA}


@pytest.mark.parametrize(
    ("path", "fields", "remedy"),
    [
        (RESPONSES, {"conversation": "conv_abc"}, "'input'"),
        (RESPONSES, {"conversation": {"id": "conv_123"}}, "'input'"),
        (RESPONSES, {"prompt": {"id": "pmpt_1"}}, "'instructions'"),
        *(
            (RESPONSES, {"tools": [{"type": kind}]}, "ordinary tool")
            for kind in (
                *("web_search", "web_search_2025_08_26", "web_search_preview"),
                *("web_search_preview_2025_03_11", "file_search", "code_interpreter", "computer"),
                *("computer_use_preview", "image_generation", "mcp", "local_shell", "shell"),
                "apply_patch",
            )
        ),
        (RESPONSES, {"tools": [{"type": "function"}, {"type": "mcp"}]}, "ordinary tool"),
        (RESPONSES, {"tool_choice": {"type": "file_search"}}, "ordinary tool"),
        *(
            (
                MESSAGES,
                {"tools": [{"name": "look", "input_schema": {}}, {"type": kind}]},
                "yourself",
            )
            for kind in (
                *("web_search_20250305", "bash_20250124", "text_editor_20250728", "web_fetch"),
                *("code_execution_20250825", "memory_20250818", "computer_20250124"),
            )
        ),
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://a.b"}]}, "'tools'"),
        (MESSAGES, {"container": "container_1"}, "Omit it"),
        (CHAT, {"functions": [FUNCTION]}, "'tools'"),
        (CHAT, {"function_call": {"name": "look"}}, "'tool_choice'"),
        (CHAT, {"web_search_options": {"search_context_size": "low"}}, "search results"),
        (CHAT, {"guided_json": SCHEMA}, "'response_format'"),
        (CHAT, {"guided_regex": "a+"}, "'structured_outputs'"),
        (CHAT, {"guided_choice": ["yes", "no"]}, "'choice'"),
        (COMPLETIONS, {"guided_grammar": 'root ::= "a"'}, "'grammar'"),
        (COMPLETIONS, {"guided_json": '{"type": "object"}'}, "'json'"),
        (RESPONSES, {"guided_choice": ["yes", "no"]}, "'choice'"),
        (CHAT, {"guided_whitespace_pattern": " ?"}, "'structured_outputs'"),
        (CHAT, {"guided_decoding_backend": "xgrammar"}, "'structured_outputs'"),
    ],
)
def test_it_is_refused_with_the_remedy(path: str, fields: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_ignored_fields(path, fields, {})
    error = refused.value
    assert (error.status, error.code) == (400, "field_not_allowed")
    assert error.param == next(iter(fields))
    assert f"'{error.param}'" in error.message and remedy in error.message
    assert_sentences(error.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"conversation": None, "prompt": None, "tools": [], "store": True}),
        (RESPONSES, {"conversation": "", "tools": None, "tool_choice": "auto"}),
        (RESPONSES, {"tools": [{"type": "function", "name": "web_search"}]}),
        (RESPONSES, {"tools": [{"type": "custom"}, {"type": "namespace"}]}),
        (RESPONSES, {"tools": [{"type": "function"}], "tool_choice": {"type": "function"}}),
        (RESPONSES, {"tools": "many"}),
        (RESPONSES, {"tools": [None, 5, {"type": ["mcp"]}], "tool_choice": [5]}),
        (CHAT, {"functions": [], "function_call": None, "guided_json": None}),
        (CHAT, {"function_call": "none"}),
        (CHAT, {"function_call": "auto"}),
        (CHAT, {"guided_choice": [], "guided_regex": "", "store": True}),
        (CHAT, {"prompt": "of another path", "conversation": "of another path"}),
        (CHAT, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (CHAT, {"structured_outputs": {"choice": ["yes", "no"]}}),
        (COMPLETIONS, {"prompt": "Hi.", "functions": [FUNCTION]}),
        (EMBEDDINGS, {"input": "Hi.", "guided_json": SCHEMA}),
        ("/tokenize", {"prompt": "Hi.", "guided_json": SCHEMA}),
    ],
)
def test_fields_that_ask_for_nothing_pass(path: str, fields: dict[str, Any]) -> None:
    refuse_ignored_fields(path, fields, {})


def test_a_tool_that_the_engine_runs_passes() -> None:
    served = {"tool_server": "localhost:8888"}
    for kind in ("web_search_preview", "code_interpreter", "mcp"):
        refuse_ignored_fields(RESPONSES, {"tools": [{"type": kind}]}, served)
    with pytest.raises(ApiError):
        refuse_ignored_fields(RESPONSES, {"tools": [{"type": "file_search"}]}, served)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
NAMES = ("tools", "tool_choice", "conversation", "function_call", "functions", "guided_x")


@given(
    fields=st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, ANYTHING)),
    path=st.sampled_from([CHAT, COMPLETIONS, RESPONSES]),
)
def test_a_request_with_any_fields_passes_or_is_refused(fields: dict[str, Any], path: str) -> None:
    try:
        refuse_ignored_fields(path, fields, {})
    except ApiError as refused:
        assert refused.param in fields


async def test_a_gateway_asks_no_engine_for_what_it_would_ignore() -> None:
    engine = FakeEngine()
    async with (
        gateway_before(engine) as front,
        front.post(guided_choice=["yes", "no"]) as answer,
    ):
        assert answer.status == 400
        assert (await answer.json())["error"]["param"] == "guided_choice"
    assert not engine.bodies
