"""Error codes of requests that are wrong."""

from __future__ import annotations

from deployments.gateway.api.limits import (
    DECISIONS,
    EXPLANATION_TTL_S,
    MAX_ITEMS,
    MAX_VALUES,
    UNDER_WAY_S,
)
from deployments.process.error_code import ErrorCode
from deployments.wire.form_limits import MAX_FIELD_BYTES, MAX_PARTS

_CORRECT = "Correct it, or omit it."
_KNOWN = "Use one that the message lists."
UNKNOWN_URL = ErrorCode(
    "unknown_url",
    404,
    "The gateway has no such path.",
    "See the list of [endpoints](#endpoints).",
)
METHOD_NOT_ALLOWED = ErrorCode(
    "method_not_allowed",
    405,
    "The path does not accept this method.",
    "See [Endpoints](#endpoints), or the header `Allow`.",
)
UNSUPPORTED_CONTENT_TYPE = ErrorCode(
    "unsupported_content_type",
    415,
    "`Content-Type` is not `application/json`, or it is not `multipart/form-data` for audio.",
    "Send JSON, or a form with the audio, with the matching `Content-Type`.",
)
UNSUPPORTED_CONTENT_ENCODING = ErrorCode(
    "unsupported_content_encoding",
    415,
    "`Content-Encoding` is set to a value other than `identity`.",
    "Send the body without compression.",
)
BODY_TOO_LARGE = ErrorCode(
    "body_too_large",
    413,
    "The body has more than `gateway.max_body_bytes` bytes.",
    "Send a smaller body.",
)
BODY_TIMEOUT = ErrorCode(
    "body_timeout",
    408,
    "The body did not arrive before the request's deadline.",
    "Check the connection, or send a smaller body. If the request set a short `x-antefix-timeout`, "
    "allow more time.",
    retry="yes",
)
INVALID_JSON = ErrorCode(
    "invalid_json",
    400,
    "The body is not a JSON object in UTF-8.",
    "Correct the body.",
)
BODY_TOO_COMPLEX = ErrorCode(
    "body_too_complex",
    400,
    f"The body has more than {MAX_VALUES:,} strings, arrays and objects, or {MAX_ITEMS:,} items.",
    "Split it into several requests.",
)
INVALID_FORM = ErrorCode(
    "invalid_form",
    400,
    f"The body is not a complete `multipart/form-data`, has more than {MAX_PARTS:,} parts, or "
    f"has a field of more than {MAX_FIELD_BYTES:,} bytes.",
    "Use an HTTP client library to build the form.",
)
INVALID_UNICODE = ErrorCode(
    "invalid_unicode",
    400,
    "A string contains a lone surrogate, which is half of a character.",
    "Send both halves, or remove it.",
)
MISSING_REQUIRED_PARAMETER = ErrorCode(
    "missing_required_parameter",
    400,
    "`model` is missing or empty, or a form has no `file`.",
    "Name a model that `GET /v1/models` lists. Send the audio as a part with a file name.",
)
INVALID_TYPE = ErrorCode("invalid_type", 400, "`model` is not a string.", "Send a string.")
EMPTY_ARRAY = ErrorCode("empty_array", 400, "`messages` is empty.", "Send at least one message.")
ARRAY_ABOVE_MAX_LENGTH = ErrorCode(
    "array_above_max_length",
    400,
    "`stop`, `stop_token_ids` or `bad_words` has more than `gateway.max_list_items` items. Or "
    "`logit_bias` or another list has more items than [its limit](#all-fields).",
    "Send fewer items.",
)
FIELD_NOT_ALLOWED = ErrorCode(
    "field_not_allowed",
    400,
    "The request has a field, tool or message part that the gateway rejects or does not know.",
    "See the [rejected fields](#fields-that-the-gateway-rejects).",
)
MEDIA_URL_NOT_ALLOWED = ErrorCode(
    "media_url_not_allowed",
    400,
    "A message refers to media on a host that the pool does not allow.",
    "Send a `data:` URL, or ask the operators to add the host to `allowed_media_domains`.",
)
INVALID_CACHE_SALT = ErrorCode(
    "invalid_cache_salt", 400, "`cache_salt` is empty or not a string.", _CORRECT
)
INVALID_VALUE = ErrorCode(
    "invalid_value",
    400,
    "A value is out of range, above a limit or unreadable, or the engine rejects it with its own "
    "message.",
    "Correct the field that `param` names.",
    also="the engine's 4xx",
)
CONTEXT_LENGTH_EXCEEDED = ErrorCode(
    "context_length_exceeded",
    400,
    "The prompt fills or exceeds the context of the model. For messages, this includes "
    "`max_tokens`.",
    "Shorten the prompt, or lower `max_tokens`.",
    also="the engine's 4xx",
)
TOKENS_ABOVE_LIMIT = ErrorCode(
    "tokens_above_limit",
    400,
    "The prompt and the longest possible answer have more tokens than the tenant's limit per "
    "minute.",
    "Lower `max_tokens`, or shorten the prompt.",
)
MODEL_NOT_FOUND = ErrorCode(
    "model_not_found",
    404,
    "No pool serves the model.",
    "Use one of the models that the message lists.",
)
UNSUPPORTED_ENDPOINT = ErrorCode(
    "unsupported_endpoint",
    400,
    "The model does not support this path. For example, a chat model has no embeddings.",
    "Use another model or another path.",
)
INVALID_HEADER = ErrorCode(
    "invalid_header",
    400,
    "An `x-antefix-` header has an invalid value.",
    "See [Request headers](#request-headers).",
)
INVALID_TIMEOUT = ErrorCode(
    "invalid_timeout",
    400,
    "`x-antefix-timeout` is not a number above 0 and at most `gateway.request_timeout_s`.",
    _CORRECT,
)
UNKNOWN_POLICY = ErrorCode(
    "unknown_policy",
    400,
    "`x-antefix-policy` is not the name of a policy.",
    _KNOWN,
)
CANNOT_OVERFLOW = ErrorCode(
    "cannot_overflow",
    400,
    "`x-antefix-overflow` is `only`, but no other model can answer. The message gives the reason.",
    "Omit the header.",
)
UNKNOWN_REQUEST = ErrorCode(
    "unknown_request",
    404,
    "The tenant has no such request, or the request began less than "
    f"{UNDER_WAY_S:g} s ago. Or it ended more than {EXPLANATION_TTL_S} s ago: explanations are "
    f"deleted {EXPLANATION_TTL_S} to {EXPLANATION_TTL_S + 60} s after the end. Under high load, "
    "the gateway stores only a [sample](routing.md#every-decision-explained) of the explanations.",
    f"Query within {EXPLANATION_TTL_S} s after the end of the request, with the `x-request-id` of "
    "the response.",
)
INVALID_LIMIT = ErrorCode(
    "invalid_limit",
    400,
    f"`limit` of `/antefix/decisions` is not an integer from 1 to {DECISIONS}.",
    _CORRECT,
)
MISSING_VALUE = ErrorCode(
    "missing_value",
    400,
    "`/antefix/profile` needs `pool` or `replica`, because there is more than one.",
    _KNOWN,
)
UNKNOWN_POOL = ErrorCode("unknown_pool", 404, "The fleet has no such pool.", _KNOWN)
UNKNOWN_REPLICA = ErrorCode("unknown_replica", 404, "The pool has no such replica.", _KNOWN)
CANNOT_PROFILE = ErrorCode(
    "cannot_profile",
    502,
    "The engine has no profiler, is already being profiled, or has failed.",
    "See [Profiling](profiling.md) and the log of the replica.",
    retry="stop",
    also="the replica's 400 or 409 (`invalid_request_error`)",
)
INVALID_REQUEST = ErrorCode(
    "invalid_request",
    400,
    "The gateway's HTTP library rejected the request.",
    "Compare the request with `/openapi.json`.",
    also="any status without a code above",
)
