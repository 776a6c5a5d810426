"""A chat or completion as vLLM reads and answers it, for the fake engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse, Response

from deployments.wire.resumable import ResumableExchange

DEFAULT_MAX_TOKENS = 4
LONGEST_PROMPT = 1000
# The last event of a stream whose engine dies.
DEATH = (
    b'data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for '
    b'the root cause.", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
)
# What vLLM says of a constraint that no token fits any more.
DEAD_END = "The grammar has no valid next token."


@dataclass
class Said:
    """One answer: what it is called, and what another engine has generated of it."""

    id: str
    created: int
    known_tokens: int = 0
    tells_ids: bool = False
    exchange: ResumableExchange | None = None

    def tells(self, token_id: int) -> None:
        if self.exchange is not None:
            self.exchange.replaying = False
            self.exchange.chunk(0, [token_id])

    def is_lost(self) -> None:
        if self.exchange is not None:
            self.exchange.lost = True


def token(number: int) -> str:
    """The first is 1."""
    return f"t{number} "


def refused(fields: dict[str, Any], chat: bool, model: str) -> Response | None:
    if fields.get("model") != model:
        return error(404, f"The model `{fields.get('model')}` does not exist.", "model")
    needed = "messages" if chat else "prompt"
    if needed not in fields:
        return error(400, f"{{'type': 'missing', 'loc': ('body', '{needed}')}}", needed)
    if max_tokens(fields) < 1:
        message = f"max_tokens must be at least 1, got {max_tokens(fields)}."
        return error(400, message, "max_tokens")
    if len(prompt(fields)) > LONGEST_PROMPT:
        message = "This model's maximum context length is shorter than the prompt."
        return error(400, message, "input_tokens")
    return None


def error(status: int, message: str, param: str | None) -> Response:
    return JSONResponse({"error": _error(status, message, param)}, status_code=status)


def error_event(status: int) -> bytes:
    """The event of a stream that ends with this error."""
    return b"data: " + json.dumps({"error": _error(status, DEAD_END, None)}).encode() + b"\n\n"


def _error(status: int, message: str, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": "BadRequestError", "param": param, "code": status}


def max_tokens(fields: dict[str, Any]) -> int:
    return int(fields.get("max_tokens", DEFAULT_MAX_TOKENS))


def prompt(fields: dict[str, Any]) -> str:
    if "prompt" in fields:
        return str(fields["prompt"])
    return " ".join(str(message["content"]) for message in fields["messages"])


def usage(fields: dict[str, Any], made: int) -> dict[str, int]:
    asked = len(prompt(fields).split())
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
