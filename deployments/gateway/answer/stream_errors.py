"""An error as the last event of a stream, in the shape of the stream's API.

Chats and completions send the error's body as an event, which OpenAI's clients look for. Responses
send an event `error`, https://platform.openai.com/docs/api-reference/responses-streaming: `type`,
`code`, `message`, `param` and `sequence_number`. Like OpenAI's own events, it also has a field
`error`, because OpenAI's clients raise an error only if they find one. Anthropic's messages send
the error's body in an event `error`, https://docs.anthropic.com/en/api/streaming.
"""

from __future__ import annotations

import json
from typing import Any

from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.inference_paths import ErrorShape


def error_event(shape: ErrorShape, error: ApiError, number: int, request_id: str) -> bytes:
    """Return the last event of a request's stream, after `number` events."""
    data: dict[str, Any] = error.body(shape, request_id)
    if shape == "openai":
        return b"data: %b\n\n" % json.dumps(data).encode()
    if shape == "responses":
        data = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "sequence_number": number,
            **data,
        }
    return b"event: error\ndata: %b\n\n" % json.dumps(data).encode()
