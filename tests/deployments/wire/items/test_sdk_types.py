"""Every type of item in the SDKs is read, refused by its name, or left to another check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import anthropic.types as anthropic
import pytest
from anthropic.types.beta import BetaContentBlockParam
from anthropic.types.tool_result_block_param import Content as ResultContent
from openai.types import chat, responses
from openai.types.responses.response_function_call_output_item_list_param import (
    ResponseFunctionCallOutputItemParam,
)
from openai.types.responses.response_input_message_content_list_param import (
    ResponseInputContentParam,
)
from openai.types.responses.response_output_message_param import Content as AnswerContent

from deployments.wire.inference_paths import CHAT, MESSAGES, RESPONSES
from deployments.wire.items import kinds
from deployments.wire.items.forms import ItemForm, ItemKind, Tagged
from deployments.wire.items.kinds import first_fault
from tests.some import some


def typed(union: Any) -> Iterator[tuple[str, Any]]:
    """Yield each type of the SDK after its name in JSON."""
    parts = [part for part in get_args(union) if isinstance(part, type) or get_args(part)]
    for part in some(parts):
        if get_args(part):
            yield from typed(part)
        else:
            for name in some(literals(hints_of(part)["type"])):
                yield name, part


def hints_of(part: Any) -> dict[str, Any]:
    """Return the fields of a typed dictionary or a model with their types."""
    models = getattr(part, "model_fields", None)
    if models is None:
        return get_type_hints(part)
    return {field.alias or name: field.annotation for name, field in models.items()}


def literals(hint: Any) -> list[str]:
    found = [name for each in get_args(hint) for name in literals(each)]
    return [*found, *([hint] if isinstance(hint, str) else ())]


def read(list_of: Tagged) -> set[str]:
    return {name for name, kind in list_of.kinds.items() if kind is not kinds.ELSEWHERE}


REFUSED_ITEMS = """
additional_tools apply_patch_call apply_patch_call_output code_interpreter_call compaction
compaction_trigger computer_call computer_call_output configuration_update file_search_call
image_generation_call local_shell_call local_shell_call_output mcp_approval_request
mcp_approval_response mcp_call mcp_list_tools program program_output shell_call shell_call_output
tool_search_call tool_search_output web_search_call
"""
REFUSED_BLOCKS = """
advisor_tool_result browser_state bash_code_execution_tool_result code_execution_tool_result
compaction fallback
mcp_tool_listing mcp_tool_result mcp_tool_use search_result server_tool_use
text_editor_code_execution_tool_result tool_search_tool_result web_fetch_tool_result
web_search_tool_result
"""
# list in Antefix, union in the SDK, those left to another check, those refused by their name
UNIONS: tuple[tuple[Tagged, Any, set[str], set[str]], ...] = (
    (
        kinds.INPUT_ITEM,
        responses.ResponseInputItemParam,
        {"item_reference"},
        set(REFUSED_ITEMS.split()),
    ),
    (kinds.ASKED_PART, ResponseInputContentParam, {"input_file"}, set()),
    (kinds.ASKED_PART, ResponseFunctionCallOutputItemParam, {"input_file"}, set()),
    (kinds.ANSWER_PART, AnswerContent, set(), set()),
    (kinds.CHAT_PART, chat.ChatCompletionContentPartParam, {"file"}, set()),
    (
        kinds.BLOCK,
        BetaContentBlockParam,
        {"document", "container_upload"},
        set(REFUSED_BLOCKS.split()) | {"tool_addition", "tool_removal"},
    ),
    (
        kinds.BLOCK,
        anthropic.ContentBlockParam,
        {"document", "container_upload"},
        set(REFUSED_BLOCKS.split()),
    ),
    (kinds.RESULT_BLOCK, ResultContent, {"document"}, {"browser_state", "search_result"}),
)


@pytest.mark.parametrize(("list_of", "union", "elsewhere", "refused"), UNIONS)
def test_every_item_type_of_the_sdk_is_read_or_rejected(
    list_of: Tagged, union: Any, elsewhere: set[str], refused: set[str]
) -> None:
    """A type that an SDK adds fails here: read it, or refuse it."""
    names = {name for name, _ in typed(union)}
    unread = names - read(list_of)
    assert unread - elsewhere <= refused
    assert not refused & read(list_of)
    for name in sorted(elsewhere & names):
        assert list_of.kinds[name] is kinds.ELSEWHERE


@pytest.mark.parametrize("name", REFUSED_ITEMS.split())
def test_the_rejection_of_an_unsupported_item_names_its_type(name: str) -> None:
    fault = first_fault(RESPONSES, {"input": [{"role": "user", "content": "a"}, {"type": name}]})
    assert fault is not None and fault.is_ignored
    assert f"'input[1]' has the type {name!r}" in fault.message


@pytest.mark.parametrize("name", REFUSED_BLOCKS.split())
@pytest.mark.parametrize("in_a_result", [False, True])
def test_the_rejection_of_an_unsupported_block_names_its_type(name: str, in_a_result: bool) -> None:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": name, "content": []}]
    if in_a_result:
        blocks = [{"type": "tool_result", "tool_use_id": "1", "content": blocks}]
    fault = first_fault(MESSAGES, {"messages": [{"role": "user", "content": blocks}]})
    assert fault is not None and fault.is_ignored
    assert repr(name) in fault.message


def keys_of(form: ItemForm) -> set[str] | None:
    """Return the fields with which an object passes; None: with any."""
    if isinstance(form, Tagged):
        found = [keys_of(each) for each in form.kinds.values()]
        return None if None in found else set().union(*(keys or () for keys in found))
    if not isinstance(form, ItemKind) or form.is_open:
        return None
    return {"type", *form.needs, *form.reads, *form.ignores}


# Fields that would change what the model sees: an engine cannot decrypt a thought, or cut an image.
NOT_READ = {"encrypted_content", "transformations"}


@pytest.mark.parametrize(("list_of", "union", "elsewhere", "refused"), UNIONS)
def test_every_field_of_a_type_that_is_read_passes(
    list_of: Tagged, union: Any, elsewhere: set[str], refused: set[str]
) -> None:
    unknown = {
        (name, key)
        for name, part in some(typed(union))
        if name in read(list_of) and (keys := keys_of(list_of.kinds[name])) is not None
        for key in hints_of(part).keys() - keys - NOT_READ
    }
    assert unknown == set()


@pytest.mark.parametrize(
    "message",
    [
        chat.ChatCompletionDeveloperMessageParam,
        chat.ChatCompletionSystemMessageParam,
        chat.ChatCompletionUserMessageParam,
        chat.ChatCompletionAssistantMessageParam,
        chat.ChatCompletionToolMessageParam,
        chat.ChatCompletionFunctionMessageParam,
    ],
)
def test_every_field_of_a_chat_message_passes_or_is_rejected_by_name(message: Any) -> None:
    known = {*(keys_of(kinds.CHAT_MESSAGE) or ()), *kinds.CHAT_MESSAGE.refuses}
    assert get_type_hints(message).keys() - known == set()


@pytest.mark.parametrize("message", get_args(anthropic.MessageParam))
def test_every_field_of_anthropics_message_passes(message: Any) -> None:
    keys = keys_of(kinds.MESSAGE)
    assert keys is None or get_type_hints(message).keys() <= keys | {"role"}


def test_a_call_in_the_old_form_is_rejected_with_the_new_form_as_remedy() -> None:
    call = {"name": "f", "arguments": "{}"}
    message = {"role": "assistant", "content": None, "function_call": call}
    fault = first_fault(CHAT, {"messages": [message]})
    assert fault is not None
    assert fault.message == (
        "'messages[0].function_call' is not supported, and the engine would ignore it."
        " Send 'tool_calls'."
    )
