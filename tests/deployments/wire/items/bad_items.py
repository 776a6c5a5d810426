"""Requests with many bad items, in each list of each path, also nested ones."""

from __future__ import annotations

from collections.abc import Iterator
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

BAD: tuple[Any, ...] = ({}, 1, None, [], "x", {"type": "nope"})

USER, TEXT = {"role": "user", "content": "Hi."}, {"type": "text", "text": "Hi."}
INPUT_TEXT = {"type": "input_text", "text": "Hi."}
OUTPUT_TEXT = {"type": "output_text", "text": "Hi."}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}


class Counted(list[Any]):
    """A list that counts how many of its items are taken."""

    taken = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            type(self).taken += 1
            yield item


class At:
    """The place of a list: `place.among(items)` are the fields of a body with these items in it.

    `good` is an item that the list may have. `allowed` are those of BAD that are good ones.
    """

    def __init__(self, path: str, field: str, good: Any, *allowed: Any, inside: Any = None) -> None:
        self.path, self.field, self.good = path, field, good
        self.bad = [each for each in BAD if each not in allowed]
        self._inside = inside

    def among(self, items: list[Any]) -> dict[str, Any]:
        return {self.field: items if self._inside is None else _with(self._inside, items)}


HERE: Any = object()


def _with(value: Any, items: list[Any]) -> Any:
    if value is HERE:
        return items
    if isinstance(value, dict):
        return {name: _with(each, items) for name, each in value.items()}
    return [_with(each, items) for each in value] if isinstance(value, list) else value


def _messages_with(role: str, **more: Any) -> list[Any]:
    return [USER, {"role": role, "content": HERE, **more}]


def _item(**item: Any) -> list[Any]:
    return [USER, item]


def _scalars(path: str) -> list[At]:
    return [
        *(At(path, name, "a", "x") for name in ("stop", "bad_words")),
        *(At(path, name, 1, 1) for name in ("stop_token_ids", "allowed_token_ids")),
        At(path, "structured_outputs", "a", "x", inside={"choice": HERE}),
    ]


def _of_chats(path: str) -> list[At]:
    return [
        At(path, "messages", USER),
        At(path, "messages", TEXT, "x", inside=_messages_with("user")),
        At(path, "messages", TEXT, "x", inside=_messages_with("tool", tool_call_id="1")),
        At(path, "messages", CALL, inside=_item(role="assistant", tool_calls=HERE)),
        At(path, "tools", CHAT_TOOL, {"type": "nope"}),
        At(path, "documents", {"text": "a"}, {}, {"type": "nope"}),
    ]


def _of_messages(path: str) -> list[At]:
    result = {"type": "tool_result", "tool_use_id": "1", "content": HERE}
    return [
        At(path, "messages", USER),
        At(path, "messages", TEXT, inside=_messages_with("user")),
        At(path, "messages", TEXT, inside=_messages_with("assistant")),
        At(path, "messages", TEXT, inside=_messages_with("system")),
        At(path, "messages", TEXT, inside=_item(role="user", content=[TEXT, result])),
        At(path, "system", TEXT),
        At(path, "tools", {"name": "f", "input_schema": {}}, {"type": "nope"}),
    ]


_PROMPT: tuple[Any, ...] = (1, "x", [])
_RESULT = {"type": "function_call_output", "call_id": "1", "output": HERE}
LISTS: tuple[At, ...] = (
    *_of_chats(CHAT),
    *_scalars(CHAT),
    At(COMPLETIONS, "prompt", "a", *_PROMPT),
    At(COMPLETIONS, "prompt", 1, 1, inside=[HERE, HERE]),
    At(COMPLETIONS, "prompt_embeds", "a", "x"),
    *_scalars(COMPLETIONS),
    At(RESPONSES, "input", USER),
    At(RESPONSES, "input", INPUT_TEXT, inside=_messages_with("user")),
    At(RESPONSES, "input", INPUT_TEXT, inside=_messages_with("developer", type="message")),
    At(RESPONSES, "input", OUTPUT_TEXT, inside=_messages_with("assistant")),
    At(RESPONSES, "input", INPUT_TEXT, inside=[_RESULT]),
    At(RESPONSES, "input", INPUT_TEXT, inside=[{**_RESULT, "type": "custom_tool_call_output"}]),
    At(
        RESPONSES,
        "input",
        {"type": "reasoning_text", "text": "a"},
        inside=_item(type="reasoning", content=HERE),
    ),
    At(
        RESPONSES,
        "input",
        {"type": "summary_text", "text": "a"},
        inside=_item(type="reasoning", summary=HERE),
    ),
    At(RESPONSES, "tools", {"type": "function", "name": "f"}, {"type": "nope"}),
    At(RESPONSES, "include", "reasoning.encrypted_content", "x"),
    *_scalars(RESPONSES),
    *_of_messages(MESSAGES),
    *_of_messages(COUNT_TOKENS),
    At(MESSAGES, "stop_sequences", "a", "x"),
    At(EMBEDDINGS, "input", "a", *_PROMPT),
    *_of_chats(EMBEDDINGS)[:4],
    At(EMBED, "texts", "a", "x"),
    At(EMBED, "images", "a", "x"),
    At(EMBED, "inputs", {"content": [TEXT]}),
    At(EMBED, "inputs", TEXT, inside=[{"content": HERE}]),
    At("/v1/rerank", "documents", "a", "x"),
    At("/v1/rerank", "documents", TEXT, inside=[{"content": HERE}]),
    *(At("/score", name, "a", "x") for name in ("queries", "items", "text_1", "data_2")),
    At("/classify", "input", "a", *_PROMPT),
    At("/pooling", "input", "a", *_PROMPT),
    *_of_chats("/tokenize")[:5],
    At("/detokenize", "tokens", 1, 1),
)
