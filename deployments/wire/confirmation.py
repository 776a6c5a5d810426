"""What an engine says of a request it serves: written by its replica, read by the gateway.

The headers are told in `deployments.wire.headers`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    OUTPUT_TOKENS_COMMENT,
    OUTPUT_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
)


@dataclass
class Confirmation:
    """One exchange as its engine sees it; several prompts in one request add up."""

    expected_cached: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None

    def first_token(self, prompt_tokens: int, cached_tokens: int, ago_s: float = 0.0) -> None:
        """The first token of a prompt came `ago_s` seconds ago."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.first_token_at is None:
            self.first_token_at = max(self.arrived_at, time.monotonic() - ago_s)

    def generated(self, tokens: int) -> None:
        """So many more output tokens."""
        self.output_tokens += tokens

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.first_token_at is None:
            return []
        values = {
            PROMPT_TOKENS_HEADER: str(self.prompt_tokens),
            CACHED_TOKENS_HEADER: str(self.cached_tokens),
            ENGINE_TTFT_HEADER: f"{self.first_token_at - self.arrived_at:.6f}",
            OUTPUT_TOKENS_HEADER: str(self.output_tokens),
        }
        return [(name.encode(), value.encode()) for name, value in values.items()]


# The exchange that the current task serves.
current: ContextVar[Confirmation | None] = ContextVar("confirmation", default=None)


def count_in(headers: Mapping[str, str], name: str) -> int | None:
    """The number in a header; None without it, or from a replica of another release."""
    value = headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


class StreamEnd:
    """Takes the comment with the output tokens off the end of a stream, as it passes.

    A comment is a line of its own, and what a client or a model says has no line ends: it is JSON.
    Bytes that may be the comment's beginning wait for those after them.
    """

    _COMMENT = re.compile(re.escape(OUTPUT_TOKENS_COMMENT) + rb"(\d{0,19})(\n?\n?)")
    _MOST_BYTES = len(OUTPUT_TOKENS_COMMENT) + 19 + 2

    def __init__(self) -> None:
        self._held = b""
        self._before = b"\n\n"  # the last bytes that were passed on

    def passed_on(self, chunk: bytes) -> bytes:
        """What may go to the client now."""
        if not self._held and chunk.endswith(b"}\n\n"):  # nearly all: an event's end
            self._before = b"\n\n"
            return chunk
        chunk = self._held + chunk
        # a comment's only colon is its first byte
        at = chunk.rfind(b":", max(0, len(chunk) - self._MOST_BYTES))
        if at < 0 or not self._may_be_comment(chunk, at):
            at = len(chunk)
        self._held = chunk[at:]
        self._before = (self._before + chunk[max(0, at - 2) : at])[-2:]
        return chunk[:at]

    def rest(self) -> tuple[bytes, int | None]:
        """When the stream has ended: what else is the client's, and the output tokens if told."""
        comment = self._COMMENT.fullmatch(self._held)
        if comment and comment[1] and comment[2] == b"\n\n":
            return b"", int(comment[1])
        return self._held, None

    def _may_be_comment(self, chunk: bytes, at: int) -> bool:
        line = chunk[at:]
        if not OUTPUT_TOKENS_COMMENT.startswith(line) and not self._COMMENT.fullmatch(line):
            return False
        return (self._before + chunk[max(0, at - 2) : at]).endswith(b"\n\n")
