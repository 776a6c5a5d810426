"""What an engine says of a request it serves, on its way back to the gateway, in headers.

    x-antefix-prompt-tokens    prompt tokens, as the engine counts them
    x-antefix-cached-tokens    those of them it found in its prefix cache
    x-antefix-engine-ttft      seconds from the request's arrival to its first token
    x-antefix-load             the replica's load at that moment (`router.load.LoadReport`)

A stream's headers wait for its first token, which is when these are known: no token is later
for it, and an engine that fails before its first token can still be replaced by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.load import LoadReport

PROMPT_TOKENS_HEADER = "x-antefix-prompt-tokens"
CACHED_TOKENS_HEADER = "x-antefix-cached-tokens"
ENGINE_TTFT_HEADER = "x-antefix-engine-ttft"
LOAD_HEADER = "x-antefix-load"
# From the gateway: how many of the prompt's tokens it expects to be cached.
EXPECTED_CACHED_HEADER = "x-antefix-expected-cached"


@dataclass
class Confirmation:
    """One exchange as its engine sees it; several prompts in one request add up."""

    expected_cached: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    arrived_at: float = field(default_factory=time.monotonic)
    first_token_at: float | None = None

    def first_token(self, prompt_tokens: int, cached_tokens: int, ago_s: float = 0.0) -> None:
        """The first token of a prompt came `ago_s` seconds ago."""
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += cached_tokens
        if self.first_token_at is None:
            self.first_token_at = max(self.arrived_at, time.monotonic() - ago_s)

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.first_token_at is None:
            return []
        values = {
            PROMPT_TOKENS_HEADER: str(self.prompt_tokens),
            CACHED_TOKENS_HEADER: str(self.cached_tokens),
            ENGINE_TTFT_HEADER: f"{self.first_token_at - self.arrived_at:.6f}",
        }
        return [(name.encode(), value.encode()) for name, value in values.items()]


# The exchange that the current task serves.
current: ContextVar[Confirmation | None] = ContextVar("confirmation", default=None)


class Confirming:
    """ASGI: `current` for the application inside, its headers and `load`'s on the answer."""

    def __init__(self, app: ASGIApp, load: Callable[[], LoadReport]) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        confirmation = Confirmation(expected_cached=_expected(scope))
        start: Message | None = None

        async def held(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            if start is not None:
                report = (LOAD_HEADER.encode(), self._load().to_header().encode())
                headers = [*start.get("headers", []), *confirmation.headers(), report]
                await send({**start, "headers": headers})
                start = None
            await send(message)

        token = current.set(confirmation)
        try:
            await self._app(scope, receive, held)
        finally:
            current.reset(token)


def _expected(scope: Scope) -> int:
    value = dict(scope["headers"]).get(EXPECTED_CACHED_HEADER.encode(), b"0")
    return int(value) if value.isdigit() else 0
