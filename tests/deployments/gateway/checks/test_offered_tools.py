"""An offered tool that no engine runs is left out; a demanded one is refused by its name."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import anthropic.types
import anthropic.types.beta
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion_tool_choice_option_param import (
    ChatCompletionToolChoiceOptionParam,
)
from openai.types.responses import response_create_params
from openai.types.responses.tool_param import ToolParam

from deployments.gateway.checks.offered_tools import OfferedTools, offered_tools
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import CHAT, COUNT_TOKENS, MESSAGES, RESPONSES, TOKENIZE
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

PATHS = (CHAT, TOKENIZE, RESPONSES, MESSAGES, COUNT_TOKENS)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
# The same tools, as each API describes them.
_OF_CHATS: dict[str, Any] = {
    "type": "function",
    "function": {"name": "look", "parameters": SCHEMA},
}
_OF_MESSAGES: dict[str, Any] = {"name": "look", "input_schema": SCHEMA}
LOOK: dict[str, dict[str, Any]] = {
    CHAT: _OF_CHATS,
    TOKENIZE: _OF_CHATS,
    RESPONSES: {"type": "function", "name": "look", "parameters": SCHEMA},
    MESSAGES: _OF_MESSAGES,
    COUNT_TOKENS: _OF_MESSAGES,
}
_SEARCH = {"type": "web_search"}
_SEARCH_OF_MESSAGES = {"type": "web_search_20250305", "name": "web_search"}
SEARCH: dict[str, dict[str, Any]] = {
    CHAT: _SEARCH,
    TOKENIZE: _SEARCH,
    RESPONSES: _SEARCH,
    MESSAGES: _SEARCH_OF_MESSAGES,
    COUNT_TOKENS: _SEARCH_OF_MESSAGES,
}


def refused(path: str, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        offered_tools(path, fields, {})
    assert_sentences(caught.value.message)
    assert caught.value.status == 400
    return caught.value


def kinds_in(union: Any) -> Iterator[str]:
    """The types of the tools, or of the choices, that an SDK's union has."""
    for each in typing.get_args(union):
        if typing.get_origin(each) is typing.Union:
            yield from kinds_in(each)
        elif isinstance(each, type):
            hint = typing.get_type_hints(each, include_extras=True)["type"]
            yield from _words(hint)


def _words(hint: Any) -> Iterator[str]:
    for each in typing.get_args(hint):
        if isinstance(each, str):
            yield each
        else:
            yield from _words(each)


@pytest.mark.parametrize("path", PATHS)
def test_an_unsupported_tool_is_removed_and_the_others_stay(path: str) -> None:
    look, search = LOOK[path], SEARCH[path]
    fields = {"tools": [search, look, search], "tool_choice": "auto"}
    assert offered_tools(path, fields, {}) == OfferedTools({"tools": [look]}, ("web_search",))


@pytest.mark.parametrize("path", PATHS)
def test_a_request_with_only_unsupported_tools_is_sent_without_tools(path: str) -> None:
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": None}):
        changes = offered_tools(path, {"tools": [SEARCH[path]], **choice}, {}).changes
        assert not changes["tools"]
        assert changes["tool_choice"] in (None, "auto")


@pytest.mark.parametrize("path", PATHS)
def test_ordinary_tools_stay_as_the_client_sent_them(path: str) -> None:
    fields = {"tools": [LOOK[path]], "tool_choice": "auto"}
    assert offered_tools(path, fields, {}) == OfferedTools()


@pytest.mark.parametrize("kind", [*dict.fromkeys(kinds_in(ToolParam))])
def test_every_openai_tool_is_served_or_removed(kind: str) -> None:
    found = offered_tools(RESPONSES, {"tools": [{"type": kind, "name": "look"}]}, {})
    assert (not found.left_out) == (kind in ("function", "custom", "namespace"))


@pytest.mark.parametrize(
    "kind",
    [
        *dict.fromkeys(
            (
                *kinds_in(anthropic.types.ToolUnionParam),
                *kinds_in(anthropic.types.beta.BetaToolUnionParam),
            )
        )
    ],
)
def test_every_anthropic_tool_is_served_or_removed(kind: str) -> None:
    found = offered_tools(MESSAGES, {"tools": [{"type": kind, "name": "look"}]}, {})
    assert (not found.left_out) == (kind == "custom")


def test_a_custom_tool_with_a_grammar_is_removed() -> None:
    """Codex offers `apply_patch` with one; vLLM takes only free text as a custom tool's input."""
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
    patch = {"type": "custom", "name": "apply_patch", "format": form}
    found = offered_tools(RESPONSES, {"tools": [LOOK[RESPONSES], patch]}, {})
    assert (found.changes["tools"], found.left_out) == ([LOOK[RESPONSES]], ("custom",))
    free = {**patch, "format": {"type": "text"}}
    assert offered_tools(RESPONSES, {"tools": [free]}, {}) == OfferedTools()
    with pytest.raises(ApiError, match="custom"):
        offered_tools(RESPONSES, {"tools": [patch], "tool_choice": "required"}, {})


def test_a_built_in_tool_with_a_schema_is_an_ordinary_one() -> None:
    tool = {"type": "bash_20250124", "name": "bash", "input_schema": SCHEMA}
    assert offered_tools(MESSAGES, {"tools": [tool]}, {}) == OfferedTools()


def test_a_tool_that_the_engine_executes_is_kept() -> None:
    served = {"tool_server": "localhost:8888"}
    for kind in ("web_search_preview", "code_interpreter", "mcp"):
        choice = {"tool_choice": {"type": kind}}
        assert (
            offered_tools(RESPONSES, {"tools": [{"type": kind}], **choice}, served).left_out == ()
        )
    left_out = offered_tools(RESPONSES, {"tools": [{"type": "file_search"}]}, served).left_out
    assert left_out == ("file_search",)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", ["frobnicate", "", "Web_Search", "web_search_\n", "functions"])
def test_the_rejection_of_a_tool_of_unknown_type_names_it(path: str, kind: str) -> None:
    error = refused(path, tools=[LOOK[path], {"type": kind, "name": "it"}])
    assert (error.code, error.param) == ("field_not_allowed", "tools")
    assert repr(kind) in error.message
    assert "tool 'tools[1]'" in error.message
    assert "'it'" in error.message


@pytest.mark.parametrize(
    ("path", "choice"),
    [
        (CHAT, "required"),
        (CHAT, {"type": "web_search"}),
        (CHAT, {"type": "function", "function": {"name": "web_search"}}),
        (RESPONSES, "required"),
        (RESPONSES, {"type": "web_search_preview_2025_03_11"}),
        (RESPONSES, {"type": "function", "name": "web_search"}),
        (RESPONSES, {"type": "allowed_tools", "mode": "required", "tools": [SEARCH[RESPONSES]]}),
        (MESSAGES, {"type": "any"}),
        (MESSAGES, {"type": "any", "disable_parallel_tool_use": True}),
        (MESSAGES, {"type": "tool", "name": "web_search"}),
    ],
)
def test_the_rejection_of_a_required_unsupported_tool_names_it(path: str, choice: Any) -> None:
    error = refused(path, tools=[SEARCH[path]], tool_choice=choice)
    assert (error.code, error.param) == ("field_not_allowed", "tool_choice")
    assert "web_search" in error.message


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_choice_of_a_supported_tool_is_passed_on(path: str) -> None:
    tools, any_of_them = [SEARCH[path], LOOK[path]], "required"
    named = {
        CHAT: {"type": "function", "function": {"name": "look"}},
        RESPONSES: {"type": "function", "name": "look"},
        MESSAGES: {"type": "tool", "name": "look"},
    }[path]
    for choice in (named, {"type": "any"} if path == MESSAGES else any_of_them):
        fields = {"tools": tools, "tool_choice": choice}
        assert offered_tools(path, fields, {}).changes == {"tools": [LOOK[path]]}


def test_an_ordinary_tool_may_have_the_name_of_a_built_in_one() -> None:
    own = {"type": "function", "name": "web_search", "parameters": SCHEMA}
    choice = {"type": "function", "name": "web_search"}
    fields = {"tools": [own, SEARCH[RESPONSES]], "tool_choice": choice}
    assert offered_tools(RESPONSES, fields, {}).changes == {"tools": [own]}


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        (RESPONSES, [*kinds_in(response_create_params.ToolChoice)]),
        (CHAT, [*kinds_in(ChatCompletionToolChoiceOptionParam)]),
        (MESSAGES, [*kinds_in(anthropic.types.ToolChoiceParam)]),
    ],
)
def test_every_tool_choice_of_an_api_is_passed_on_or_rejected_by_name(
    path: str, kinds: list[str]
) -> None:
    obeyed = {
        RESPONSES: {"function", "custom", "allowed_tools"},
        CHAT: {"function", "allowed_tools"},
        MESSAGES: {"auto", "any", "tool", "none"},
    }[path]
    assert obeyed <= set(kinds)
    for kind in {"frobnicate", *kinds} - obeyed:
        error = refused(path, tools=[LOOK[path]], tool_choice={"type": kind})
        assert error.param == "tool_choice" and repr(kind) in error.message


def allowed(path: str, mode: Any, tools: Any) -> dict[str, Any]:
    held = {"mode": mode, "tools": tools}
    nested = {"allowed_tools": held} if path == CHAT else held
    return {"type": "allowed_tools", **nested}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_engine_receives_only_the_allowed_tools(path: str, mode: str) -> None:
    other = json.loads(json.dumps(LOOK[path]).replace("look", "listen"))
    named: dict[str, Any] = {"type": "function", "name": "listen"}
    if path == CHAT:
        named = {"type": "function", "function": {"name": "listen"}}
    fields = {
        "tools": [LOOK[path], SEARCH[path], other],
        "tool_choice": allowed(path, mode, [named, SEARCH[path]]),
    }
    assert offered_tools(path, fields, {}).changes == {"tools": [other], "tool_choice": mode}


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
def test_a_request_that_allows_no_tool_is_sent_without_tools(path: str) -> None:
    for listed in ([], [SEARCH[path]]):
        fields = {"tools": [LOOK[path]], "tool_choice": allowed(path, "auto", listed)}
        assert not offered_tools(path, fields, {}).changes["tools"]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("mode", "tools"),
    [
        ("auto", [{"type": "function", "name": "absent"}]),
        ("auto", [{"type": "function"}]),
        ("auto", ["look"]),
        ("auto", None),
        ("required", []),
        ("sometimes", []),
        (None, []),
    ],
)
def test_allowed_tools_of_an_unknown_form_are_rejected(path: str, mode: Any, tools: Any) -> None:
    error = refused(path, tools=[LOOK[path]], tool_choice=allowed(path, mode, tools))
    assert error.param == "tool_choice"


@pytest.mark.parametrize("name", ["look", "sight__look"])
def test_one_tool_of_a_namespace_may_be_allowed(name: str) -> None:
    listen = {**LOOK[RESPONSES], "name": "listen"}
    namespace = {"type": "namespace", "name": "sight", "tools": [LOOK[RESPONSES], listen]}
    choice = allowed(RESPONSES, "auto", [{"type": "function", "name": name}])
    changes = offered_tools(RESPONSES, {"tools": [namespace], "tool_choice": choice}, {}).changes
    assert changes["tools"] == [{**namespace, "tools": [LOOK[RESPONSES]]}]


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
def test_without_a_tool_search_the_model_sees_deferred_tools_at_once(path: str) -> None:
    kind = "tool_search" if path == RESPONSES else "tool_search_tool_regex_20251119"
    deferred = {**LOOK[path], "defer_loading": True}
    alone = offered_tools(path, {"tools": [deferred]}, {})
    found = offered_tools(path, {"tools": [{"type": kind, "name": "find"}, deferred]}, {})
    assert alone == OfferedTools()
    assert found.changes["tools"] == [LOOK[path]]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["function", "mcp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "name", "function", "tools", "mode", "allowed_tools"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    fields=st.fixed_dictionaries({}, optional=dict.fromkeys(("tools", "tool_choice"), ANYTHING)),
    path=st.sampled_from(PATHS),
)
def test_a_request_with_any_fields_passes_or_is_refused(fields: dict[str, Any], path: str) -> None:
    try:
        found = offered_tools(path, fields, {})
    except ApiError as error:
        assert error.param in fields
    else:
        assert set(found.changes) <= {"tools", "tool_choice"}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_the_engine_receives_no_tool_that_it_cannot_execute(path: str) -> None:
    engine = FakeEngine()
    tools = [SEARCH[path], LOOK[path]]
    async with (
        gateway_before(engine) as front,
        front.post(path, max_tokens=3, tools=tools) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-antefix-left-out-tools"] == "web_search"
    (body,) = engine.bodies
    assert json.loads(body)["tools"] == [LOOK[path]]


async def test_a_request_whose_tools_are_all_kept_has_no_left_out_header() -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front, front.post(tools=[LOOK[CHAT]]) as answer:
        assert answer.status == 200
        assert "x-antefix-left-out-tools" not in answer.headers
    (body,) = engine.bodies
    assert body.count(b'"tools"') == 1
