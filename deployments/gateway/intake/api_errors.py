"""Errors of the API, in OpenAI's or Anthropic's format.

- https://platform.openai.com/docs/guides/error-codes: {"error": {"message", "type", "param",
  "code"}}
- https://docs.anthropic.com/en/api/errors: {"type": "error", "error": {"type", "message"},
  "request_id"}. Antefix adds `param` and `code` to its "error".

An engine's own errors keep their field, status and message, without what only operators can use.
`stream_errors` has the formats of errors inside a stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from deployments.gateway.api.load_codes import ENGINE_ERROR, ENGINE_UNAVAILABLE, NO_REDIS
from deployments.gateway.api.request_codes import CONTEXT_LENGTH_EXCEEDED, INVALID_VALUE
from deployments.gateway.api.request_headers import ANTHROPIC_VERSION
from deployments.gateway.api.response_headers import (
    ANTHROPIC_ID_HEADER,
    REQUEST_ID_HEADER,
    RETRY_AFTER,
    SHOULD_RETRY,
    WWW_AUTHENTICATE,
)
from deployments.process.error_code import ErrorCode
from deployments.wire.context_length import ANSWER_TOO_LONG, PROMPT_TOO_LONG, TEXT_TOO_LONG
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
# An engine's `param` for a full context, and the client's. vLLM's names no field.
_FULL_CONTEXTS = {
    PROMPT_TOO_LONG: PROMPT_TOO_LONG,
    TEXT_TOO_LONG: TEXT_TOO_LONG,
    ANSWER_TOO_LONG: "max_tokens",
}

# vLLM checks these without naming them in `param`: `_verify_args` in vllm/sampling_params.py.
_NAMES_A_FIELD = re.compile(
    r"(n|presence_penalty|frequency_penalty|repetition_penalty|min_p|top_k|max_tokens|min_tokens"
    r"|logprobs|prompt_logprobs|truncate_prompt_tokens|stop_token_ids|stop|stop_sequences|bad_words)"
    r" (?:must|cannot)\b"
)

# Flags of vLLM's server that its errors for clients name. Others may be a client's own text.
_SERVER_FLAG = re.compile(
    r"(?<!\S)[\"'`(]?--(chat-template|enable-auto-tool-choice|enable-trace-replay"
    r"|kv-sharing-fast-prefill|limit-mm-per-prompt|pooler-config|reasoning-config"
    r"|reasoning-parser|tool-call-parser|trust-request-chat-template)\b"
)
_NOT_CONFIGURED = (
    "The model is not configured for this request. Change the request, or ask the operators to"
    " configure the model."
)


class ApiError(Exception):
    """An error answer for the client.

    `param` names the field at fault. `retry_after` is in seconds, for a code with that header.
    `status` is for a code that may have another one. Programs can rely on `code`.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        status: int | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        assert status is None or code.also
        assert ("Retry-After" in code.retry) == (retry_after is not None)
        self.status = code.status if status is None else status
        self.message = message
        self.code = code.name
        self.param = param
        self.headers = dict(headers or {})
        if self.status == 401:
            self.headers.setdefault(WWW_AUTHENTICATE, "Bearer")
        if retry_after is not None:
            self.headers[RETRY_AFTER] = str(retry_after)
        if "stop" in code.retry:
            # OpenAI's clients retry 408, 409, 429 and 5xx automatically, unless an answer has this
            self.headers[SHOULD_RETRY] = "false"

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
    return "anthropic" if ANTHROPIC_VERSION in headers else "openai"


def id_headers(shape: ErrorShape, request_id: str) -> dict[str, str]:
    """Return the headers of an answer that identify its request."""
    headers: dict[str, str] = {REQUEST_ID_HEADER: request_id}
    if shape == "anthropic":
        headers[ANTHROPIC_ID_HEADER] = request_id
    return headers


def error_type(status: int) -> str:
    """Return OpenAI's error type for this status."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    return _TYPE_BY_STATUS.get(status, fallback)


def anthropic_type(status: int) -> str:
    """Return Anthropic's error type for this status."""
    fallback = "api_error" if status >= 500 else "invalid_request_error"
    return _ANTHROPIC_TYPE_BY_STATUS.get(status, fallback)


def from_engine(status: int, body: bytes, request_id: str) -> ApiError:
    """Return an engine's error answer for the client: a 4xx in its words, a 5xx without
    internals."""
    if status >= 500:
        return ApiError(
            ENGINE_ERROR,
            f"The engine failed. Send the request again. If it fails again, report its id,"
            f" {request_id}, to the operators.",
            status=status,
        )
    try:
        error = json.loads(body)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError, AttributeError):
        phrase = _PHRASES.get(status, "no reason given")
        message, param = (
            f"The engine rejected the request: {status} ({phrase}). Compare it with /openapi.json.",
            None,
        )
    message = _for_clients(message, param)
    if isinstance(param, str) and param in _FULL_CONTEXTS:
        named = _FULL_CONTEXTS[param]
        return ApiError(CONTEXT_LENGTH_EXCEEDED, message, status=status, param=named)
    if param is None and (found := _NAMES_A_FIELD.match(message)):
        param = found[1]
    if isinstance(param, str):
        param = param.removeprefix("body.")
    return ApiError(INVALID_VALUE, message, status=status, param=param)


def _for_clients(message: str, param: Any) -> str:
    """Return an engine's message without the field that `param` repeats, and without sentences
    about flags of vLLM's server."""
    if isinstance(param, str):
        repeated = rf" \(parameter={re.escape(param)}(, value=.*)?\)\Z"
        message = re.sub(repeated, "", message, flags=re.DOTALL)
    sentences = re.split(r"(?<=[.!?])\s+", message)
    useful = [sentence for sentence in sentences if not _SERVER_FLAG.search(sentence)]
    if len(useful) == len(sentences):
        return message
    return " ".join([*useful, _NOT_CONFIGURED])


def interrupted() -> ApiError:
    """Return the error for an answer that stopped midway and that no other engine resumes."""
    message = "The engine's answer was interrupted. Send the request again."
    return ApiError(ENGINE_UNAVAILABLE, message, retry_after=1)


def no_redis(stored: str) -> ApiError:
    """Return the error if Redis does not answer, which stores this."""
    message = f"Redis, which stores {stored}, is not responding. Try again in 1 s."
    return ApiError(NO_REDIS, message, retry_after=1)
