"""Iterates over the parts of a request's messages, such as texts and images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# Messages have their parts in `content`. Results of tools have them in `output` in responses. In
# Anthropic's messages such a result is a part itself, with its parts in `content`.
_CONTENTS = ("content", "output")
_MESSAGES = ("messages", "input", "inputs")
# Of requests for scores, whose texts may be objects with parts, one or a list of them.
_SCORED = (
    *("query", "queries", "documents", "items"),
    *("text_1", "text_2", "data_1", "data_2"),
)
# Parts of Anthropic's messages that are also text. Parts in a tool's result are yielded themselves.
_OTHER_TEXTS = ("thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference")


def messages_in(items: object) -> Iterator[dict[str, Any]]:
    """Yield the items of `messages` or `input`, which may have several conversations."""
    lists = [items] if isinstance(items, list) else []
    while lists:
        for item in lists.pop():
            if isinstance(item, list):
                lists.append(item)
            elif isinstance(item, dict):
                yield item


def parts_in(items: object) -> Iterator[dict[str, Any]]:
    """Yield the parts of all messages, except texts that are plain strings."""
    for message in messages_in(items):
        for part in _parts_of(message):
            yield part
            if part.get("type") == "tool_result":
                yield from _parts_of(part)


def media_lengths(fields: Mapping[str, Any]) -> list[int]:
    """Return the characters of each image and each message part that is not text."""
    of_messages = (fields.get(name) for name in _MESSAGES)
    scored = (fields.get(name) for name in _SCORED)
    lists = (*of_messages, *(each if isinstance(each, list) else [each] for each in scored))
    parts = (part for items in lists for part in parts_in(items))
    images = fields.get("images")
    urls = images if isinstance(images, list) else []
    return [_length(part) for part in (*filter(_is_media, parts), *({"": url} for url in urls))]


def _is_media(part: Mapping[str, Any]) -> bool:
    kind = str(part.get("type"))
    return "text" not in kind and kind not in _OTHER_TEXTS


def _length(part: Mapping[str, Any]) -> int:
    """Return the length of the strings in a part, and in objects in it."""
    holders = [part, *(value for value in part.values() if isinstance(value, dict))]
    texts = (value for holder in holders for value in holder.values() if isinstance(value, str))
    return sum(map(len, texts))


def _parts_of(holder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _CONTENTS:
        content = holder.get(name)
        for part in content if isinstance(content, list) else (content,):
            if isinstance(part, dict):
                yield part
