"""Iterates over the parts of a request's messages, such as texts and images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Messages have their parts in `content`. Results of tools have them in `output` in responses. In
# Anthropic's messages such a result is a part itself, with its parts in `content`.
_CONTENTS = ("content", "output")


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


def _parts_of(holder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _CONTENTS:
        content = holder.get(name)
        for part in content if isinstance(content, list) else (content,):
            if isinstance(part, dict):
                yield part
