"""The parts of a request's messages: texts, images and whatever else they hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# A message has its parts in `content`, the result of a tool in responses in `output`. The result of
# a tool in Anthropic's messages is a part, and has its parts in `content`.
_CONTENTS = ("content", "output")


def messages_in(items: object) -> Iterator[dict[str, Any]]:
    """The messages and other items of `messages` or `input`, of several conversations as well."""
    lists = [items] if isinstance(items, list) else []
    while lists:
        for item in lists.pop():
            if isinstance(item, list):
                lists.append(item)
            elif isinstance(item, dict):
                yield item


def parts_in(items: object) -> Iterator[dict[str, Any]]:
    """The parts of all messages; a text that stands for a part is none."""
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
