"""Error events in an engine's stream, for its own failure or for an invalid request.

vLLM begins a stream before its engine has checked the request, and reports either error as one more
event: `data: {"error": {..., "code": 400}}`, in a response `event: error`. The gateway never
forwards such an event unchanged. An error event that it cannot parse counts as status 500.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from deployments.wire.headers import ENGINE_DEAD

END = b"\n\n"
# In the messages of PyTorch's allocators, of CUDA and of NumPy, which vLLM passes on.
OUT_OF_MEMORY = (b"out of memory", b"not enough memory", b"Unable to allocate")

_ERRORS = (b'data: {"error"', b"event: error\n")
# vLLM sends these before its engine gets the request.
_PRELIMINARY = (
    b"event: response.created\n",
    b"event: response.in_progress\n",
    b"event: response.queued\n",
)
_UNDECIDED = (*_ERRORS, *_PRELIMINARY)


@dataclass(frozen=True)
class EngineError:
    """An engine's error, from an answer or an event: HTTP status, and body in vLLM's shape."""

    status: int
    body: bytes

    @property
    def is_dead(self) -> bool:
        """Return whether the engine can serve no more requests."""
        return self.status >= 500 and ENGINE_DEAD.encode() in self.body

    @property
    def is_out_of_memory(self) -> bool:
        """Return whether the engine had no memory left for the request."""
        return self.status >= 500 and any(words in self.body for words in OUT_OF_MEMORY)


def error_in(event: bytes) -> EngineError | None:
    """Return the error that an event of a stream reports, or None."""
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
    """Return the error that the first event reports, or None. `stream` is the first part of it.

    Comments do not count as the first event, nor do the events before vLLM's engine gets the
    request.
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
    """Return the HTTP status of an error with this code. A word means an invalid request."""
    if isinstance(code, str) and not code.isdigit():
        return 400
    try:
        status = int(code)
    except (TypeError, ValueError):
        return 500
    return status if 400 <= status <= 599 else 500
