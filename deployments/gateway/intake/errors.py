"""Errors of the API, in OpenAI's or Anthropic's format.

- https://platform.openai.com/docs/guides/error-codes: {"error": {"message", "type", "param",
  "code"}}
- https://docs.anthropic.com/en/api/errors: {"type": "error", "error": {"type", "message"},
  "request_id"}. Antefix adds `param` and `code` to its "error".

An engine's own errors keep their message, field and status, in the same format. `stream_errors` has
the formats of errors inside a stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from deployments.wire.inference_paths import INFERENCE_PATHS, ErrorShape

_TYPE_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPE_BY_STATUS = {
    **_TYPE_BY_STATUS,
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
# vLLM's `param` for a prompt longer than the model's context: not a field of any API.
# Source: `TokenizeParams` in vllm/renderers/params.py of vLLM 0.32, and Antefix's `prompt_length`.
_TOO_LONG_A_PROMPT = ("input_tokens", "input_text")

# OpenAI's clients retry 408, 409, 429 and 5xx automatically, unless an answer has this header.
NO_RETRY = {"x-should-retry": "false"}


class ApiError(Exception):
    """An error answer for the client.

    `param` names the field at fault, and `retry_after` is in seconds. Programs can rely on `code`;
    `deployments.gateway.reference.error_codes` lists all codes.
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

    def body(self, shape: ErrorShape = "openai", request_id: str = "") -> dict[str, Any]:
        """Return the JSON that the client gets; `request_id` is for Anthropic's format."""
        is_anthropic = shape == "anthropic"
        error = {
            "message": self.message,
            "type": anthropic_type(self.status) if is_anthropic else error_type(self.status),
            "param": self.param,
            "code": self.code,
        }
        if is_anthropic:
            return {"type": "error", "error": error, "request_id": request_id}
        return {"error": error}


def shape_of(path: str, headers: Mapping[str, str]) -> ErrorShape:
    """Return the format of a request's errors.

    On paths without an engine, a header identifies clients of Anthropic's API: they always send it.
    """
    if path in INFERENCE_PATHS:
        return INFERENCE_PATHS[path].errors
    return "anthropic" if "anthropic-version" in headers else "openai"


def id_headers(shape: ErrorShape, request_id: str) -> dict[str, str]:
    """Return the headers of an answer that identify its request."""
    also = {"request-id": request_id} if shape == "anthropic" else {}
    return {"x-request-id": request_id, **also}


def error_type(status: int) -> str:
    """Return OpenAI's error type for this status."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    return _TYPE_BY_STATUS.get(status, fallback)


def anthropic_type(status: int) -> str:
    """Return Anthropic's error type for this status."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    return _ANTHROPIC_TYPE_BY_STATUS.get(status, fallback)


def from_engine(status: int, body: bytes, request_id: str) -> ApiError:
    """Return an engine's error answer for the client: a 4xx unchanged, a 5xx without internals."""
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
            f"The engine rejected the request: {status} ({phrase}). See /openapi.json.",
            None,
        )
    if param in _TOO_LONG_A_PROMPT:
        return ApiError(status, message, code="context_length_exceeded", param=param)
    if isinstance(param, str):
        param = param.removeprefix("body.")
    return ApiError(status, message, code="invalid_value", param=param)


def interrupted() -> ApiError:
    """Return the error for an answer that stopped midway and that no other engine resumes."""
    message = "The engine's answer was interrupted. Send the request again."
    return ApiError(503, message, code="engine_unavailable", retry_after=1)


def no_redis(stored: str) -> ApiError:
    """Return the error if Redis does not answer, which stores this."""
    message = f"Redis stores {stored}, and does not answer. Try again later."
    return ApiError(503, message, code="no_redis", retry_after=1)
