"""A streamed answer of an OpenAI API, read as it arrives: the times and number of tokens.

An event has tokens if it has text, content, reasoning or a tool's call. An empty text counts too,
because a special token or half a character is a token. The exception is the empty text with the
role, before all tokens. Raises BadStream for an incomplete stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

DONE = b"[DONE]"


class BadStream(Exception):
    """`kind`: "incomplete", "malformed", or "stream_error" for an error event of the server."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class _Delta(msgspec.Struct):
    role: str | None = None
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    def has_tokens(self) -> bool:
        if self.content is not None and (self.content or self.role is None):
            return True
        return bool(self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    def has_tokens(self) -> bool:
        return self.text is not None or (self.delta is not None and self.delta.has_tokens())


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class TokenStream:
    """A stream. `now` returns the time of the bytes that are fed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._rest = b""
        self._is_whole = False
        self._has_events = False
        self.token_times_s: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.cached_tokens: int | None = None

    def feed(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        came_s = self._now()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[len(b"data:") :].strip(), came_s)

    def end(self) -> None:
        """End the stream."""
        if not self._is_whole:
            what = "before its end" if self._has_events else "without an event: is it a stream?"
            raise BadStream("incomplete", f"the answer ended {what}")

    def _event(self, data: bytes, came_s: float) -> None:
        self._has_events = True
        if data == DONE:
            self._is_whole = True
            return
        try:
            event = _decode(data)
        except msgspec.MsgspecError as error:
            raise BadStream(
                "malformed", f"{data[:80]!r} is not an event of a stream: {error}"
            ) from None
        if event.error is not None:
            raise BadStream("stream_error", _message(event.error))
        if event.choices and event.choices[0].has_tokens():
            self.token_times_s.append(came_s)
        if event.usage is not None:
            self._count(event.usage)

    def _count(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _message(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
