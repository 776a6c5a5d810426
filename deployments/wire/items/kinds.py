"""Which items engines read, in each list of each path.

A gateway refuses other items, and so does a replica, before vLLM's models see them: their unions
make hundreds of errors for one bad item. Source: the request models in vllm/entrypoints of vLLM
0.32, and what vllm/renderers/chat_utils.py, vllm/entrypoints/anthropic/serving.py and
vllm/entrypoints/openai/responses/utils.py make of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBED,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
)
from deployments.wire.items.forms import (
    Anything,
    Either,
    ItemFault,
    ItemForm,
    ItemKind,
    ListOf,
    MapOf,
    Plain,
    Tagged,
    Whole,
)

TEXT = Plain((str,), "a string")
OBJECT = Plain((dict,), "an object")
NUMBER = Plain((int, float, str), "a number")
ANYTHING, WHOLE = Anything(), Whole()
TEXTS, NUMBERS = ListOf(TEXT), ListOf(WHOLE)
# Other checks of the gateway refuse these, with a remedy for each.
ELSEWHERE = ItemKind(is_open=True)
# Other checks look at the URL or the data.
_MEDIA = ItemKind(reads={"type": TEXT}, is_open=True)


def _one_of(*names: str) -> Mapping[str, ItemForm]:
    return dict.fromkeys(names, TEXT)


# --- chats ---

_MEDIA_PARTS = (
    *("image_url", "audio_url", "video_url", "input_audio", "input_image"),
    *("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"),
)
_FILE_PARTS = ("file", "input_file", "image_file")


def _type_of_part(part: Mapping[str, Any]) -> Any:
    """Return the type of a chat's part; vLLM derives a missing one from the field with a URL."""
    if part.get("type") is not None:
        return part["type"]
    return next((name for name in _MEDIA_PARTS if part.get(name) is not None), None)


# Templates that take parts see the other fields of a part.
CHAT_PART = Tagged(
    "part",
    {
        **{
            name: ItemKind({"text": TEXT}, is_open=True)
            for name in ("text", "input_text", "output_text")
        },
        "refusal": ItemKind({"refusal": TEXT}, is_open=True),
        "thinking": ItemKind({"thinking": TEXT}, is_open=True),
        "tool_reference": ItemKind({"name": TEXT}, is_open=True),
        **dict.fromkeys(_MEDIA_PARTS, _MEDIA),
        **dict.fromkeys(_FILE_PARTS, ELSEWHERE),
    },
    otherwise="Send its content in a part of type 'text'.",
    tag_of=_type_of_part,
)
CHAT_CALL = ItemKind(
    {"function": ItemKind({"name": TEXT, "arguments": TEXT}, is_open=True)},
    _one_of("id"),
    is_open=True,
)
# Fields that clients keep from an answer, and send back with it.
_OF_ANSWERS = (
    *("id", "object", "created", "model", "type", "status", "usage", "metadata", "timestamp"),
    *("annotations", "citations", "logprobs", "parsed", "finish_reason", "stop_reason", "index"),
    *("provider_specific_fields", "reasoning_details", "thinking_blocks", "token_ids", "weight"),
    *("cache_control", "extra_content", "stop_sequence", "stop_details", "container"),
)
CHAT_MESSAGE = ItemKind(
    {"role": TEXT},
    {
        "content": Either(TEXT, ListOf(Either(TEXT, CHAT_PART))),
        "tool_calls": ListOf(CHAT_CALL),
        "tools": ListOf(OBJECT),
        "audio": ANYTHING,
        **_one_of("name", "tool_call_id", "reasoning", "reasoning_content", "task", "refusal"),
    },
    ignores=frozenset(_OF_ANSWERS),
    refuses={
        "function_call": "Send 'tool_calls'.",
        "prefix": "Send 'continue_final_message': true and 'add_generation_prompt': false.",
    },
)


def _type_of_tool(tool: Mapping[str, Any]) -> Any:
    """Return "function", or "other" for a tool with another type or only a name."""
    kind = tool.get("type")
    if kind == "function" or (kind is None and "function" in tool):
        return "function"
    return "other" if kind or tool.get("name") else None


CHAT_TOOL = Tagged(
    "tool",
    {
        "function": ItemKind(
            reads={"function": ItemKind({"name": TEXT}, is_open=True)}, is_open=True
        ),
        "other": ItemKind(reads=_one_of("type"), is_open=True),
    },
    otherwise="Send {'type': 'function', 'function': {...}}.",
    tag_of=_type_of_tool,
)

# --- responses ---

_KEPT_PARTS: Mapping[str, ItemForm] = dict.fromkeys(_FILE_PARTS, ELSEWHERE)
_HINTS = frozenset(
    {"prompt_cache_breakpoint", "annotations", "logprobs", "id", "index", "phase", "cache_control"}
)
_INPUT_TEXT = ItemKind({"text": TEXT}, ignores=_HINTS)
ASKED_PART = Tagged(
    "part",
    {
        "input_text": _INPUT_TEXT,
        "input_image": ItemKind(
            reads={"image_url": TEXT, "file_id": TEXT, "detail": TEXT, "uuid": TEXT}, ignores=_HINTS
        ),
        **_KEPT_PARTS,
    },
    otherwise="Send its content in a part of type 'input_text'.",
)
ANSWER_PART = Tagged(
    "part",
    {
        "output_text": _INPUT_TEXT,
        "input_text": _INPUT_TEXT,
        "refusal": ItemKind({"refusal": TEXT}, ignores=_HINTS),
        **_KEPT_PARTS,
    },
    otherwise="Send its content in a part of type 'output_text'.",
)
THOUGHT_PART = Tagged(
    "part",
    {name: ItemKind({"text": TEXT}, ignores=_HINTS) for name in ("reasoning_text", "text")},
    otherwise="Send its content in a part of type 'reasoning_text'.",
)
SUMMARY_PART = Tagged(
    "part",
    {"summary_text": ItemKind({"text": TEXT}, ignores=_HINTS)},
    otherwise="Send its content in a part of type 'summary_text'.",
)
# The last three are of agents: Codex and OpenAI's Agents SDK send them back.
_OF_ITEMS = frozenset(
    {
        *("phase", "caller", "async", "created_by", "model", "metadata", "index"),
        *("end_turn", "internal_chat_message_metadata_passthrough", "provider_data"),
    }
)
_LABELS = _one_of("id", "status")


def _said_by(part: ItemForm) -> ItemForm:
    content = Either(TEXT, ListOf(part))
    return ItemKind({"role": TEXT, "content": content}, _LABELS, ignores=_OF_ITEMS)


def _call(*names: str) -> ItemForm:
    return ItemKind(_one_of(*names), {**_LABELS, "namespace": TEXT}, ignores=_OF_ITEMS)


_RESULT = ItemKind(
    {"output": Either(TEXT, ListOf(ASKED_PART))},
    {**_LABELS, **_one_of("call_id")},
    ignores=_OF_ITEMS | {"name", "namespace"},
)


def _type_of_item(item: Mapping[str, Any]) -> Any:
    """Return the type of an item; without one it is a message, or names a stored item."""
    if item.get("type") is not None:
        return item["type"]
    if item.get("role") is not None:
        return "message"
    return "item_reference" if isinstance(item.get("id"), str) else None


INPUT_ITEM = Tagged(
    "item",
    {
        "message": Tagged(
            "message",
            {
                **dict.fromkeys(("user", "system", "developer"), _said_by(ASKED_PART)),
                "assistant": _said_by(ANSWER_PART),
            },
            tag="role",
            tag_of=lambda item: item.get("role"),
        ),
        "function_call": _call("call_id", "name", "arguments"),
        "custom_tool_call": _call("call_id", "name", "input"),
        "function_call_output": _RESULT,
        "custom_tool_call_output": _RESULT,
        "reasoning": ItemKind(
            reads={
                **_LABELS,
                "content": ListOf(THOUGHT_PART),
                "summary": ListOf(SUMMARY_PART),
            },
            ignores=_OF_ITEMS,
            refuses={"encrypted_content": "Engines cannot decrypt it. Omit it."},
        ),
        "item_reference": ELSEWHERE,
    },
    otherwise="Send what it contains in an item of type 'message'.",
    tag_of=_type_of_item,
)
RESPONSE_TOOL = ItemKind({"type": TEXT}, {"name": TEXT}, is_open=True)

# --- Anthropic's messages ---

_MARKS = frozenset({"type", "cache_control", "citations", "caller", "toolset_name", "index"})
_TEXT_BLOCK = ItemKind({"text": TEXT}, ignores=_MARKS)
_IMAGE_BLOCK = ItemKind({"source": OBJECT}, ignores=_MARKS)
_REFERENCE = ItemKind(reads=_one_of("tool_name", "name"), ignores=_MARKS)
_KEPT_BLOCKS: Mapping[str, ItemForm] = dict.fromkeys(("document", "container_upload"), ELSEWHERE)
_AS_TEXT_BLOCK = "Send its content in a block of type 'text'."
RESULT_BLOCK = Tagged(
    "block",
    {
        "text": _TEXT_BLOCK,
        "image": _MEDIA,
        "tool_reference": _REFERENCE,
        **_KEPT_BLOCKS,
    },
    otherwise=_AS_TEXT_BLOCK,
)
BLOCK = Tagged(
    "block",
    {
        "text": _TEXT_BLOCK,
        "image": _IMAGE_BLOCK,
        "thinking": ItemKind({"thinking": TEXT}, ignores=_MARKS | {"signature"}),
        "redacted_thinking": ItemKind(ignores=_MARKS | {"data"}),
        "tool_use": ItemKind({"name": TEXT}, {"id": TEXT, "input": OBJECT}, ignores=_MARKS),
        "tool_result": ItemKind(
            reads={
                "tool_use_id": TEXT,
                "content": Either(TEXT, ListOf(RESULT_BLOCK)),
                "is_error": ANYTHING,
            },
            ignores=_MARKS,
        ),
        **_KEPT_BLOCKS,
    },
    otherwise=_AS_TEXT_BLOCK,
)
SYSTEM_BLOCK = Tagged("block", {"text": _TEXT_BLOCK}, otherwise=_AS_TEXT_BLOCK)
_TOOL_CHANGE = ItemKind({"tool": OBJECT}, ignores=_MARKS)
INLINE_SYSTEM_BLOCK = Tagged(
    "block",
    {"text": _TEXT_BLOCK, "tool_addition": _TOOL_CHANGE, "tool_removal": _TOOL_CHANGE},
    otherwise=_AS_TEXT_BLOCK,
)


def _message_of(block: ItemForm) -> ItemForm:
    content = Either(TEXT, ListOf(block))
    return ItemKind({"role": TEXT, "content": content}, ignores=frozenset(_OF_ANSWERS))


MESSAGE = Tagged(
    "message",
    {
        **dict.fromkeys(("user", "assistant"), _message_of(BLOCK)),
        "system": _message_of(INLINE_SYSTEM_BLOCK),
    },
    tag="role",
    tag_of=lambda message: message.get("role"),
)


MESSAGE_TOOL = Tagged(
    "tool",
    {"other": ItemKind(reads=_one_of("name", "type"), is_open=True)},
    otherwise="Send one with a 'name' and an 'input_schema'.",
    tag="name",
    tag_of=_type_of_tool,
)

# --- texts to embed, to rank and to score ---

_EMBED_PART = Tagged("part", {"text": ItemKind({"text": TEXT}, is_open=True), "image_url": _MEDIA})
_SCORED_PART = Tagged(
    "part",
    {
        "text": ItemKind({"text": TEXT}, is_open=True),
        **dict.fromkeys(("image_url", "image_embeds", "video_url"), _MEDIA),
    },
    tag_of=_type_of_part,
)
_SCORED = Either(TEXT, ItemKind({"content": ListOf(_SCORED_PART)}, is_open=True))
_SCORED_ONE_OR_MORE = Either(
    TEXT, ListOf(_SCORED), ItemKind({"content": ListOf(_SCORED_PART)}, is_open=True)
)
_PROMPTS = Either(TEXT, ListOf(Either(TEXT, NUMBERS, WHOLE)))

_OF_ALL: Mapping[str, ItemForm] = {
    "stop": Either(TEXT, TEXTS),
    "bad_words": TEXTS,
    "stop_sequences": TEXTS,
    "include": TEXTS,
    "stop_token_ids": NUMBERS,
    "allowed_token_ids": NUMBERS,
    "logprob_token_ids": NUMBERS,
    "logit_bias": MapOf(NUMBER),
    "structured_outputs": ItemKind(reads={"choice": TEXTS}, is_open=True),
}
_OF_CHATS: Mapping[str, ItemForm] = {
    **_OF_ALL,
    "messages": ListOf(CHAT_MESSAGE),
    "tools": ListOf(CHAT_TOOL),
    "documents": ListOf(MapOf(TEXT)),
}
_OF_MESSAGES: Mapping[str, ItemForm] = {
    **_OF_ALL,
    "messages": ListOf(MESSAGE),
    "system": Either(TEXT, ListOf(SYSTEM_BLOCK)),
    "tools": ListOf(MESSAGE_TOOL),
}
_OF_SCORES: Mapping[str, ItemForm] = {
    "query": _SCORED,
    **dict.fromkeys(
        ("documents", "queries", "items", "text_1", "text_2", "data_1", "data_2"),
        _SCORED_ONE_OR_MORE,
    ),
}
# Of each path, the fields with a list or with an object of many values.
FORMS: Mapping[str, Mapping[str, ItemForm]] = {
    CHAT: _OF_CHATS,
    COMPLETIONS: {**_OF_ALL, "prompt": _PROMPTS, "prompt_embeds": Either(TEXT, TEXTS)},
    RESPONSES: {
        **_OF_ALL,
        "input": Either(TEXT, ListOf(INPUT_ITEM)),
        "tools": ListOf(RESPONSE_TOOL),
        "previous_input_messages": ListOf(OBJECT),
        "metadata": MapOf(TEXT),
    },
    MESSAGES: _OF_MESSAGES,
    COUNT_TOKENS: _OF_MESSAGES,
    EMBEDDINGS: {**_OF_CHATS, "input": _PROMPTS},
    EMBED: {
        "texts": TEXTS,
        "images": TEXTS,
        "inputs": ListOf(ItemKind({"content": ListOf(_EMBED_PART)}, is_open=True)),
        "embedding_types": TEXTS,
    },
    **dict.fromkeys(("/v2/rerank", "/v1/rerank", "/rerank", "/score", "/v1/score"), _OF_SCORES),
    "/classify": {**_OF_CHATS, "input": _PROMPTS},
    "/pooling": {**_OF_CHATS, "input": _PROMPTS, "data": ANYTHING},
    "/tokenize": {**_OF_CHATS, "prompt": TEXT},
    "/detokenize": {"tokens": NUMBERS},
}


def first_fault(path: str, fields: Mapping[str, Any]) -> ItemFault | None:
    """Return the first fault in the fields of a body; None: engines read every item."""
    forms = FORMS.get(path, {})
    for name, value in fields.items():
        form = ANYTHING if value is None else forms.get(name, ANYTHING)
        if (fault := form.fault(value, (None, name))) is not None:
            return fault
    return None
