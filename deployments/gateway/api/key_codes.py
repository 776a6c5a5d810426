"""Error codes of keys and their rights."""

from __future__ import annotations

from deployments.process.error_code import ErrorCode

_NEW_KEY = "Ask the operators for a new key."
_OTHER_KEY = "Omit the header, or ask the operators for another key."
MISSING_API_KEY = ErrorCode(
    "missing_api_key",
    401,
    "The request has neither the header `Authorization: Bearer KEY` nor `x-api-key: KEY`.",
    "Send an API key in one of these headers.",
)
INVALID_API_KEY = ErrorCode(
    "invalid_api_key",
    401,
    "The key is not valid for this fleet.",
    "Check the key for typos, or ask the operators for a new one.",
)
REVOKED_API_KEY = ErrorCode("revoked_api_key", 401, "The operators revoked the key.", _NEW_KEY)
EXPIRED_API_KEY = ErrorCode("expired_api_key", 401, "The key has expired.", _NEW_KEY)
MODEL_NOT_ALLOWED = ErrorCode(
    "model_not_allowed",
    403,
    "The key may not use this model.",
    "Use another model, or ask the operators for another key.",
)
PRIORITY_NOT_ALLOWED = ErrorCode(
    "priority_not_allowed",
    403,
    "The request asks for the class `interactive`, but its key or tenant allows only `batch`. Or "
    "it sets `priority`, which its tenant may not set.",
    "Omit the header or field. Otherwise, ask the operators to allow the class for the "
    "key and its tenant, or to set `engine_priority: true` for the tenant.",
)
POLICY_NOT_ALLOWED = ErrorCode(
    "policy_not_allowed",
    403,
    "The key or its tenant may not send `x-antefix-policy`.",
    "Omit the header, or ask the operators to set `policy_header: true` for the tenant and to "
    "issue a key without `policy=no`.",
)
OVERFLOW_NOT_ALLOWED = ErrorCode(
    "overflow_not_allowed",
    403,
    "`x-antefix-overflow` is `only`, which is not allowed for this key and model.",
    _OTHER_KEY,
)
NOT_AN_OPERATOR = ErrorCode(
    "not_an_operator",
    403,
    "Only operators may profile engines, list and end canaries, and list, load and unload "
    "adapters.",
    "Use an operator's key, or ask an operator to set `operator: true` for the tenant and "
    "to issue a key with `--operator`.",
)
