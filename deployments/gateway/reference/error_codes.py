"""Every error code that a client of a gateway may get, as docs/api.md lists them.

A code stands in the call of `ApiError` or `ConnectionRefusal` that makes it, as a literal or a
constant: tests compare this table with those calls, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping

from deployments.gateway.checks.fatal_requests import KEPT_S
from deployments.gateway.intake.request_body import MAX_ITEMS, MAX_VALUES
from deployments.gateway.record.explanations import DECISIONS, EXPLANATION_TTL_S
from deployments.gateway.reference.connection_codes import CONNECTION_CODES
from deployments.gateway.reference.error_code import ErrorCode
from deployments.gateway.reference.operator_codes import ADAPTER_CODES, CANARY_CODES
from deployments.wire.forms import MAX_FIELD_BYTES, MAX_PARTS

_NEW_KEY = "Ask the operators for a new key."
_OTHER_KEY = "Omit the header, or ask the operators for another key."
_CORRECT = "Correct it, or omit it."
_KNOWN = "Use one that the message names."

_KEYS = (
    ErrorCode(
        "missing_api_key",
        401,
        "The request has no header `Authorization: Bearer KEY`.",
        "Send an API key.",
    ),
    ErrorCode("invalid_api_key", 401, "The fleet does not know the key.", _NEW_KEY),
    ErrorCode("revoked_api_key", 401, "The operators revoked the key.", _NEW_KEY),
    ErrorCode("expired_api_key", 401, "The key has expired.", _NEW_KEY),
    ErrorCode(
        "model_not_allowed",
        403,
        "The key may not use this model.",
        "Use another model, or ask the operators for another key.",
    ),
    ErrorCode(
        "priority_not_allowed",
        403,
        "A key for the class `batch` asks for `interactive`, or the tenant may not set `priority`.",
        "Omit the header or field, or ask the operators for the right.",
    ),
    ErrorCode("policy_not_allowed", 403, "The key may not send `x-antefix-policy`.", _OTHER_KEY),
    ErrorCode(
        "overflow_not_allowed",
        403,
        "`x-antefix-overflow` is `only`, which the key may not ask for with this model.",
        _OTHER_KEY,
    ),
    ErrorCode(
        "not_an_operator",
        403,
        "Only operators may profile an engine, end a canary, or load an adapter.",
        "Use an operator's key, or set `operator: true` for the key's tenant.",
    ),
)

_REQUESTS = (
    ErrorCode(
        "unknown_url",
        404,
        "The gateway has no such path.",
        "See the list of [endpoints](#endpoints).",
    ),
    ErrorCode(
        "method_not_allowed",
        405,
        "The path does not accept this method.",
        "See [Endpoints](#endpoints), or the header `Allow`.",
    ),
    ErrorCode(
        "unsupported_content_type",
        415,
        "`Content-Type` is not `application/json`, or for audio not `multipart/form-data`.",
        "Send JSON, or a form with the audio, and name its type.",
    ),
    ErrorCode(
        "unsupported_content_encoding",
        415,
        "`Content-Encoding` is set, and is not `identity`.",
        "Send it without compression.",
    ),
    ErrorCode(
        "body_too_large",
        413,
        "The body has more than `gateway.max_body_bytes` bytes.",
        "Send a smaller body.",
    ),
    ErrorCode(
        "body_timeout",
        408,
        "The body did not arrive before the request's deadline.",
        "Send it faster, or allow more time with `x-antefix-timeout`.",
        retry="yes",
    ),
    ErrorCode(
        "invalid_json",
        400,
        f"The body is not a JSON object in UTF-8, or has more than {MAX_VALUES:,} strings, arrays "
        f"and objects, or {MAX_ITEMS:,} items.",
        "Correct the body, or split it into several requests.",
    ),
    ErrorCode(
        "invalid_form",
        400,
        f"The body is not a whole `multipart/form-data`, or has more than {MAX_PARTS:,} parts, or "
        f"a field of more than {MAX_FIELD_BYTES:,} bytes.",
        "Let an HTTP client write the form.",
    ),
    ErrorCode(
        "invalid_unicode",
        400,
        "A string holds a lone surrogate.",
        "Send a surrogate pair, or remove it.",
    ),
    ErrorCode(
        "missing_required_parameter",
        400,
        "`model` is missing or empty, or a form has no `file`.",
        "Name a model of `GET /v1/models`. Send the audio as a part with a file name.",
    ),
    ErrorCode("invalid_type", 400, "`model` is not a string.", "Send a string."),
    ErrorCode("empty_array", 400, "`messages` is empty.", "Send at least one message."),
    ErrorCode(
        "array_above_max_length",
        400,
        "`stop`, `stop_token_ids` or `bad_words` has more than `gateway.max_list_items` items.",
        "Send fewer items.",
    ),
    ErrorCode(
        "field_not_allowed",
        400,
        "The request has a field, tool or message part that the gateway refuses.",
        "See [refused fields](#fields-that-the-gateway-refuses).",
    ),
    ErrorCode(
        "media_url_not_allowed",
        400,
        "A message names media on a host that the pool does not allow.",
        "Send a `data:` URL, or ask the operators to list the host in `allowed_media_domains`.",
    ),
    ErrorCode("invalid_cache_salt", 400, "`cache_salt` is empty or not a string.", _CORRECT),
    ErrorCode(
        "invalid_value",
        400,
        "A value is out of range, over a limit or unreadable, or the engine refuses it, with its "
        "own message.",
        "Correct the field that `param` names.",
        also="the engine's 4xx",
    ),
    ErrorCode(
        "context_length_exceeded",
        400,
        "The prompt fills or exceeds the model's context.",
        "Shorten the prompt.",
        also="the engine's 4xx",
    ),
    ErrorCode(
        "tokens_above_limit",
        400,
        "The request may use more tokens than the tenant has for a minute.",
        "Lower `max_tokens`, or shorten the prompt.",
    ),
    ErrorCode(
        "model_not_found", 404, "No pool serves the model.", "Use a model that the message names."
    ),
    ErrorCode(
        "unsupported_endpoint",
        400,
        "The model does not support this path, such as embeddings from a chat model.",
        "Use another model or another path.",
    ),
    ErrorCode(
        "invalid_header",
        400,
        "A header of Antefix has an invalid value, or asks to resume where the fleet keeps no "
        "streams.",
        "See [Request headers](#request-headers).",
    ),
    ErrorCode(
        "invalid_timeout",
        400,
        "`x-antefix-timeout` is not a number above 0 and at most `gateway.request_timeout_s`.",
        _CORRECT,
    ),
    ErrorCode(
        "unknown_policy",
        400,
        "`x-antefix-policy` names no policy.",
        _KNOWN,
    ),
    ErrorCode(
        "cannot_overflow",
        400,
        "`x-antefix-overflow` is `only`, and no other model may answer. The message says why.",
        "Omit the header.",
    ),
    ErrorCode(
        "unknown_stream",
        404,
        "No replica keeps the stream that `x-antefix-resume` names, or it is another request's.",
        "Send the request without the header.",
    ),
    ErrorCode(
        "unknown_request",
        404,
        f"The tenant has no such request, or it ended more than {EXPLANATION_TTL_S} s ago.",
        "Ask earlier, by the `x-request-id` of the answer.",
    ),
    ErrorCode(
        "invalid_limit",
        400,
        f"`limit` of `/antefix/decisions` is not a whole number from 1 to {DECISIONS}.",
        _CORRECT,
    ),
    ErrorCode(
        "missing_value",
        400,
        "`/antefix/profile` needs `pool` or `replica`, because there is more than one.",
        _KNOWN,
    ),
    ErrorCode("unknown_pool", 404, "The fleet has no such pool.", _KNOWN),
    ErrorCode("unknown_replica", 404, "The pool has no such replica.", _KNOWN),
    ErrorCode(
        "cannot_profile",
        502,
        "The engine has no profiler, is being profiled or failed.",
        "See [profiling.md](profiling.md), and the replica's log.",
        retry="stop",
        also="the replica's 400 or 409 (`invalid_request_error`)",
    ),
    ErrorCode(
        "invalid_request",
        400,
        "The gateway's HTTP library refused the request.",
        "Compare it with `/openapi.json`.",
        also="any status without a code above",
    ),
)

_LOAD = (
    ErrorCode(
        "rate_limit_exceeded",
        429,
        "The tenant has used its requests, tokens or concurrent requests, a stream was resumed "
        "too often, or Redis cannot report what is left.",
        "Send fewer or shorter requests. See [budgets.md](budgets.md).",
        retry="Retry-After",
    ),
    ErrorCode(
        "over_capacity",
        429,
        "No replica is predicted to meet the SLO, and the request can neither wait nor overflow.",
        "Send fewer requests at once. See [admission.md](admission.md).",
        retry="Retry-After",
    ),
    ErrorCode(
        "queue_full",
        429,
        "Every replica is busy, and `max_queued_requests` wait for them.",
        "Send fewer requests at once.",
        retry="Retry-After",
    ),
    ErrorCode(
        "gateway_full",
        503,
        "The bodies under way reach `gateway.max_bodies_bytes`, or the tenant's share of it.",
        "Send smaller bodies, or fewer at once.",
        retry="Retry-After",
    ),
    ErrorCode(
        "no_replica",
        503,
        "No replica can take the request, and none is predicted to start in time. For "
        "`/openapi.json`: no engine has described its API yet.",
        "Allow more time with `x-antefix-timeout`. See [admission.md](admission.md#no-replica).",
        retry="Retry-After",
    ),
    ErrorCode(
        "engine_unavailable",
        503,
        "The engine was lost, and no other completed the answer within `gateway.retries`.",
        "Send the request again.",
        retry="Retry-After",
    ),
    ErrorCode(
        "engines_lost",
        503,
        f"Every engine that worked on the request was lost. Gateways then refuse it for {KEPT_S} "
        "s. After several such requests of a tenant, its next one gets this error after one lost "
        "engine, without `x-should-retry`.",
        "Change the request, because it may be the cause.",
        retry="Retry-After, stop",
    ),
    ErrorCode(
        "engine_error",
        500,
        "The engine reported an internal failure, and so did those of `gateway.retries`.",
        "Give the operators the request's id.",
        retry="yes",
        also="the engine's 5xx",
    ),
    ErrorCode(
        "gateway_error",
        500,
        "The gateway failed unexpectedly.",
        "Give the operators the request's id.",
        retry="yes",
    ),
    ErrorCode(
        "gateway_stopped",
        503,
        "The gateway shuts down before the answer is complete.",
        "Resume the stream if it has an id. Otherwise send the request again.",
        retry="Retry-After",
    ),
    ErrorCode(
        "deadline_exceeded",
        504,
        "The request did not finish within `x-antefix-timeout` or `gateway.request_timeout_s`.",
        "Ask for fewer tokens, or for more time.",
        retry="stop",
    ),
    ErrorCode(
        "taken_over",
        409,
        "A later request resumed this stream. It is the last event of the earlier one.",
        "Read the stream there.",
        retry="stop",
    ),
    ErrorCode(
        "no_redis",
        503,
        "Redis, which keeps explanations, canaries and adapters, does not answer.",
        "Try again later. Inference needs no Redis.",
        retry="Retry-After",
    ),
)

ERROR_CODES: Mapping[str, tuple[ErrorCode, ...]] = {
    "Keys and rights": _KEYS,
    "The request": _REQUESTS,
    "Load and failures": _LOAD,
    "Canaries and adapters": CANARY_CODES + ADAPTER_CODES,
    "Connections": CONNECTION_CODES,
}
