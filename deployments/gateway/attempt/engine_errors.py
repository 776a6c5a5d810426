"""What an engine's stream says of its own failure, and of a mistake of its client.

vLLM begins a stream before its engine has checked the request, and reports either as one more
event: `data: {"error": {..., "code": 400}}`, in a response `event: error`. Such an event never
reaches the client as it is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

END = b"\n\n"
# How vLLM's EngineDeadError begins: its engine is gone, and with it all that it was working on.
ENGINE_DEAD = b"EngineCore encountered an issue"

_ERRORS = (b'data: {"error"', b"event: error\n")
# vLLM sends these before it asks its engine.
_PRELIMINARY = (
    b"event: response.created\n",
    b"event: response.in_progress\n",
    b"event: response.queued\n",
)
_UNDECIDED = (*_ERRORS, *_PRELIMINARY)


@dataclass(frozen=True)
class EngineError:
    """An engine's error answer, wherever it stood: its HTTP status and its body in vLLM's shape."""

    status: int
    body: bytes

    @property
    def is_dead(self) -> bool:
        """Whether the engine can serve no request any more."""
        return self.status >= 500 and ENGINE_DEAD in self.body


def error_in(event: bytes) -> EngineError | None:
    """The error that one event of a stream reports; None: it reports none."""
    if not event.startswith(_ERRORS):
        return None
    lines = event.split(b"\n")
    try:
        data = json.loads(b"".join(line[6:] for line in lines if line.startswith(b"data: ")))
        error = data.get("error", data)
    except (ValueError, AttributeError):
        return EngineError(500, event)
    if error is None:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return EngineError(_status(code), json.dumps({"error": error}).encode())


def error_at_the_beginning(stream: bytes) -> EngineError | Literal["undecided"] | None:
    """What the first event of a stream reports, which begins like that, as `error_in` does.

    Comments, and what vLLM sends before it asks its engine, are no first event.
    """
    while True:
        event, end, rest = stream.partition(END)
        if event.startswith((b":", *_PRELIMINARY)):
            if not end:
                return "undecided"
            stream = rest
        elif end:
            return error_in(event)
        elif event.startswith(_ERRORS) or any(error.startswith(event) for error in _UNDECIDED):
            return "undecided"
        else:
            return None


def _status(code: Any) -> int:
    """The HTTP status of an error with this code; one that is a word comes with a refusal."""
    if isinstance(code, str) and not code.isdigit():
        return 400
    try:
        status = int(code)
    except (TypeError, ValueError):
        return 500
    return status if 400 <= status <= 599 else 500
