"""The counts and times of a request that a replica reports to the gateway in headers.

`deployments.wire.headers` describes the headers. A missing or invalid count is None.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    FINISH_REASON_HEADER,
    OUTPUT_TOKENS_HEADER,
    PROMPT_TOKENS_HEADER,
)


@dataclass
class Confirmation:
    """One exchange as its engine counts it: the sum over all prompts of the request.

    This engine generated `output_tokens`; another had generated `known_tokens` of the answer
    before. `kv_tiers` and `kv_source`: the values of KV_TIERS_HEADER and KV_SOURCE_HEADER.
    `tier_tokens`: those that its first call loads from the host tier, from the disk tier and from
    another replica. `finish_reason`: vLLM's word for why the latest sequence ended; empty until
    then. `idle` is set while the exchange has no call of the engine under way.
    """

    expected_cached: int = 0
    kv_tiers: str = ""
    kv_source: str = ""
    tier_tokens: tuple[int, int, int] = (0, 0, 0)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    known_tokens: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None
    finish_reason: str = ""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    _calls: int = 0

    def __post_init__(self) -> None:
        self.idle.set()

    def call_began(self) -> None:
        """Record a call of the engine for this exchange; one request may make several."""
        self._calls += 1
        self.idle.clear()

    def call_ended(self) -> None:
        """Record that the engine has stopped this call, after its tokens were counted."""
        self._calls -= 1
        if not self._calls:
            self.idle.set()

    def first_token(self, prompt_tokens: int, cached_tokens: int, ago_s: float = 0.0) -> None:
        """Record that a prompt's first token was generated `ago_s` seconds ago."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.first_token_at is None:
            self.first_token_at = max(self.arrived_at, time.monotonic() - ago_s)

    def generated(self, tokens: int) -> None:
        """Record this number of further output tokens."""
        self.output_tokens += tokens

    def unanswered(self, prompt_tokens: int) -> None:
        """Record a prompt that was abandoned before its first token."""
        self.prompt_tokens += prompt_tokens

    def final_headers(self) -> dict[str, str]:
        """Return headers with the counts of an ended exchange, of all engines together."""
        return {
            PROMPT_TOKENS_HEADER: str(self.prompt_tokens),
            CACHED_TOKENS_HEADER: str(self.cached_tokens),
            OUTPUT_TOKENS_HEADER: str(self.known_tokens + self.output_tokens),
        }

    def headers(self, is_error: bool = False) -> list[tuple[bytes, bytes]]:
        """Return headers with the counts so far: none before a first token, except for an error."""
        if self.first_token_at is None:
            values = self.final_headers() if is_error else {}
            return [(name.encode(), value.encode()) for name, value in values.items()]
        values = {
            PROMPT_TOKENS_HEADER: str(self.prompt_tokens),
            CACHED_TOKENS_HEADER: str(self.cached_tokens),
            ENGINE_TTFT_HEADER: f"{self.first_token_at - self.arrived_at:.6f}",
            OUTPUT_TOKENS_HEADER: str(self.output_tokens),
        }
        if self.finish_reason:
            values[FINISH_REASON_HEADER] = self.finish_reason
        return [(name.encode(), value.encode()) for name, value in values.items()]


# The exchange that the current task serves.
current: ContextVar[Confirmation | None] = ContextVar("confirmation", default=None)


def count_in(headers: Mapping[str, str], name: str) -> int | None:
    """Return the number in a header; None if it is missing, or not a number (another release)."""
    value = headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None
