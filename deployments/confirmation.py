"""What an engine says of a request it serves, on its way back to the gateway, in headers.

    x-antefix-prompt-tokens    prompt tokens, as the engine counts them
    x-antefix-cached-tokens    those of them it found in its prefix cache
    x-antefix-engine-ttft      seconds from the request's arrival to its first token
    x-antefix-output-tokens    tokens it generated; a gateway's stream ends with a comment
                               that says so
    x-antefix-load             the replica's load at that moment (`router.load.LoadReport`)

A stream's headers wait for its first token, which is when these are known: no token is later
for it, and an engine that fails before its first token can still be replaced by another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.load import LoadReport

PROMPT_TOKENS_HEADER = "x-antefix-prompt-tokens"
CACHED_TOKENS_HEADER = "x-antefix-cached-tokens"
ENGINE_TTFT_HEADER = "x-antefix-engine-ttft"
LOAD_HEADER = "x-antefix-load"
OUTPUT_TOKENS_HEADER = "x-antefix-output-tokens"
# A line that every reader of server-sent events skips, should it ever get to a client:
# https://html.spec.whatwg.org/multipage/server-sent-events.html
OUTPUT_TOKENS_COMMENT = b": antefix-output-tokens "
# From the gateway: how many of the prompt's tokens it expects to be cached.
EXPECTED_CACHED_HEADER = "x-antefix-expected-cached"


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


class Confirming:
    """ASGI: `current` for the application inside, its headers and `load`'s on the answer."""

    def __init__(self, app: ASGIApp, load: Callable[[], LoadReport]) -> None:
        self._app = app
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        expected = dict(scope["headers"]).get(EXPECTED_CACHED_HEADER.encode())
        confirmation = Confirmation(expected_cached=_number(expected or b"0"))
        start: Message | None = None
        streams = False

        async def held(message: Message) -> None:
            nonlocal start, streams
            if message["type"] == "http.response.start":
                # who asks an engine itself gets what vLLM says, and nothing else
                start, streams = message, expected is not None and _is_event_stream(message)
                return
            if start is not None:
                report = (LOAD_HEADER.encode(), self._load().to_header().encode())
                headers = [*start.get("headers", []), *confirmation.headers(), report]
                await send({**start, "headers": headers})
                start = None
            ends = message["type"] == "http.response.body" and not message.get("more_body")
            if ends and streams and confirmation.first_token_at is not None:
                comment = OUTPUT_TOKENS_COMMENT + b"%d\n\n" % confirmation.output_tokens
                message = {**message, "body": message.get("body", b"") + comment}
            await send(message)

        token = current.set(confirmation)
        try:
            await self._app(scope, receive, held)
        finally:
            current.reset(token)


def count_in(headers: Mapping[str, str], name: str) -> int | None:
    """The number in a header; None without it, or from a replica of another release."""
    value = headers.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


def without_output_tokens(chunk: bytes) -> tuple[bytes, int | None]:
    """A stream's last bytes without the comment that ends them, and the number in it."""
    text, _, number = chunk.rpartition(OUTPUT_TOKENS_COMMENT)
    return text, int(number) if number.strip().isdigit() else None


def _is_event_stream(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start.get("headers", ())}
    return bool(headers.get(b"content-type", b"").startswith(b"text/event-stream"))


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0
