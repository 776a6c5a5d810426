"""The kinds of items that engines read, as docs/api.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from deployments.wire.items import kinds
from deployments.wire.items.forms import Tagged


class ItemsRead(NamedTuple):
    """`where`: the list. `endpoints`: whose list it is. `read`: its kinds."""

    where: str
    endpoints: str
    read: Tagged


_LISTS = (
    ItemsRead("parts of the content of a message", "chat completions, tokenize", kinds.CHAT_PART),
    ItemsRead("`input`", "responses", kinds.INPUT_ITEM),
    ItemsRead("parts of a question or of a tool result", "responses", kinds.ASKED_PART),
    ItemsRead("parts of an assistant's message", "responses", kinds.ANSWER_PART),
    ItemsRead("content of a reasoning item", "responses", kinds.THOUGHT_PART),
    ItemsRead("summary of a reasoning item", "responses", kinds.SUMMARY_PART),
    ItemsRead("content of a message", "messages", kinds.BLOCK),
    ItemsRead("content of a system message", "messages", kinds.INLINE_SYSTEM_BLOCK),
    ItemsRead("`system`", "messages", kinds.SYSTEM_BLOCK),
    ItemsRead("content of a `tool_result`", "messages", kinds.RESULT_BLOCK),
)


def items_read() -> Iterator[tuple[str, str, str]]:
    """Yield each list with its endpoints and its types, as Markdown."""
    for each in _LISTS:
        names = (name for name, kind in each.read.kinds.items() if kind is not kinds.ELSEWHERE)
        yield each.where, each.endpoints, ", ".join(f"`{name}`" for name in names)
