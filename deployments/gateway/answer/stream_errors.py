"""An error inside a stream that has begun, in the shape of the stream's API.

Chat and completions have the error answer as their last event, which OpenAI's clients look for. A
response has a separate event, https://platform.openai.com/docs/api-reference/responses-streaming
(`error`): `type`, `code`, `message`, `param` and `sequence_number`. It also has `error`, as what
OpenAI itself sends: OpenAI's clients raise an error only where they find that.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from deployments.gateway.intake.errors import ApiError
from deployments.wire.continuation import RESPONSES_PATH


def error_event(path: str, error: ApiError, number: int) -> bytes:
    """The last event of a stream of the API at `path`, which has had `number` events."""
    return _SHAPES.get(path, _of_chat)(error, number)


def _of_chat(error: ApiError, number: int) -> bytes:
    return b"data: %b\n\n" % json.dumps(error.body()).encode()


def _of_a_response(error: ApiError, number: int) -> bytes:
    data = {
        "type": "error",
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "sequence_number": number,
        **error.body(),
    }
    return b"event: error\ndata: %b\n\n" % json.dumps(data).encode()


_SHAPES: dict[str, Callable[[ApiError, int], bytes]] = {RESPONSES_PATH: _of_a_response}
