"""An engine's facts about tokenizing requests: everything on which the result depends.

`deployments.engine.vllm.tokenizing_facts` writes them, in the replica. Engines with equal digests
give equal tokens for equal requests, so a gateway needs one `PromptTokens` per digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import msgspec


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the form of a message's content in it: one string, or, for "openai", a
    list of parts."""

    text: str
    content_format: Literal["string", "openai"]


@dataclass(frozen=True)
class MessagesFacts:
    """How an engine turns Anthropic's messages into a chat. `merges_system_messages`: its template
    takes one system message, at the beginning. `disabled_thinking_effort`: the reasoning effort
    that stands for a request whose thinking is disabled."""

    merges_system_messages: bool
    disabled_thinking_effort: str


@dataclass(frozen=True)
class RendererFacts:
    """Facts of one engine. `template` is for chats without tools, `tool_template` with them.

    None if the engine has none and rejects such chats.
    """

    tokenizer: str = field(repr=False)
    """The JSON of the Rust tokenizer. Any truncation and padding in it do not hold."""
    split_special_tokens: bool
    """Special tokens in a text are text like any other."""
    special_tokens: Mapping[str, str]
    """What templates know by name: bos_token, eos_token, ..."""
    truncation_side: Literal["left", "right"]
    max_chars_per_token: int
    max_model_len: int
    """Tokens."""
    template: ChatTemplate | None = field(repr=False)
    tool_template: ChatTemplate | None = field(repr=False)
    template_kwargs: Mapping[str, Any]
    """Variables every template gets, unless the request sets them."""
    exclude_tools_when_tool_choice_none: bool
    messages: MessagesFacts | None = None
    """None where it is not known."""

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def from_json(cls, data: bytes | str) -> RendererFacts:
        """Parse facts. Raises msgspec.DecodeError for data that `to_json` did not write."""
        return msgspec.json.decode(data, type=cls)

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that identify these facts."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]
