"""What goes wrong at the API, in OpenAI's shape.

https://platform.openai.com/docs/guides/error-codes: {"error": {"message", "type", "param",
"code"}}. An engine's own errors keep their message, field and status and take the same shape.
`stream_errors` has the shapes of errors inside a stream.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# How vLLM names a prompt that is longer than the model's context: no field of any API is called so.
# Source: `TokenizeParams` in vllm/renderers/params.py of vLLM 0.32, and our `prompt_length`.
_TOO_LONG_A_PROMPT = ("input_tokens", "input_text")

# OpenAI's clients retry 408, 409, 429 and 5xx by themselves, unless an answer has this header.
NO_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """An answer other than success, for the client to read.

    `param` names the field at fault, `retry_after` is seconds. `code` is stable for programs, and
    `deployments.gateway.reference.error_codes` lists every one.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        if status == 401:
            self.headers.setdefault("www-authenticate", "Bearer")
        if retry_after is not None:
            self.headers["retry-after"] = str(retry_after)

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": error_type(self.status),
                "param": self.param,
                "code": self.code,
            }
        }


def error_type(status: int) -> str:
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    return _TYPE_BY_STATUS.get(status, fallback)


def from_engine(status: int, body: bytes, request_id: str) -> ApiError:
    """An engine's error answer: its 4xx as it is, its 5xx without internals."""
    if status >= 500:
        return ApiError(
            status,
            f"The engine failed on this request. Give the operators its id, {request_id}.",
            code="engine_error",
        )
    try:
        error = json.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        phrase = _PHRASES.get(status, "no reason given")
        message, param = (
            f"The engine refused the request: {status} ({phrase}). See /openapi.json.",
            None,
        )
    if param in _TOO_LONG_A_PROMPT:
        return ApiError(status, message, code="context_length_exceeded", param=param)
    if isinstance(param, str):
        param = param.removeprefix("body.")
    return ApiError(status, message, code="invalid_value", param=param)


def broken_off() -> ApiError:
    """An engine's answer ended in the middle, and no other engine resumes it."""
    message = "The engine broke off. Send the request again."
    return ApiError(503, message, code="engine_unavailable", retry_after=1)
