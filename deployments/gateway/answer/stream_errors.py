"""An error inside a stream that has begun, in the shape of the stream's API.

Chat and completions have the error answer as their last event, which OpenAI's clients look for. A
response has a separate event, https://platform.openai.com/docs/api-reference/responses-streaming
(`error`): `type`, `code`, `message`, `param` and `sequence_number`. It also has `error`, as what
OpenAI itself sends: OpenAI's clients raise an error only where they find that. Anthropic's messages
have the error answer in an event `error`, https://docs.anthropic.com/en/api/streaming.
"""

from __future__ import annotations

import json
from typing import Any

from deployments.gateway.intake.errors import ApiError
from deployments.wire.inference_paths import ErrorShape


def error_event(shape: ErrorShape, error: ApiError, number: int, request_id: str) -> bytes:
    """The last event of a request's stream, which has had `number` events."""
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
