"""Every header that a gateway reads from clients.

`deployments.wire.headers` has those between gateways and replicas.
"""

from __future__ import annotations

from deployments.gateway.api.client_header import ClientHeader
from router.choice.policies import POLICY_NAMES

AUTHORIZATION = ClientHeader(
    "authorization",
    "`Bearer KEY`",
    "The [API key](keys.md), for endpoints that require one.",
)
API_KEY_HEADER = ClientHeader(
    "x-api-key",
    "string",
    "The API key, in the header that clients of Anthropic's API use. `authorization` takes "
    "precedence.",
)
ANTHROPIC_VERSION = ClientHeader(
    "anthropic-version",
    "string",
    "If it is present, the list of models and the errors of endpoints that no engine serves have "
    "the same structure as Anthropic's.",
)
CONTENT_TYPE = ClientHeader(
    "content-type",
    "`application/json` or `multipart/form-data`",
    "Required for every request with a body: `multipart/form-data` for transcriptions and "
    "translations, and `application/json` for all other endpoints.",
)
CONTENT_ENCODING = ClientHeader(
    "content-encoding", "`identity`", "Optional. The gateway does not accept compressed bodies."
)
CONTENT_LENGTH = ClientHeader(
    "content-length",
    "integer, bytes",
    "Optional. The gateway rejects a body above `gateway.max_body_bytes` before it arrives.",
)
REQUEST_ID_HEADER = ClientHeader(
    "x-request-id",
    "1 to 128 letters, digits and `. _ : = + @ ~ # -`",
    "The id of the request in the answer, logs, traces and explanations. If it is absent or has "
    "another form, the gateway generates an id.",
)
TIMEOUT_HEADER = ClientHeader(
    "x-antefix-timeout",
    "number, seconds",
    "The time within which the request must finish after it arrives. The default and the maximum "
    "are `gateway.request_timeout_s`.",
)
PRIORITY_HEADER = ClientHeader(
    "x-antefix-priority",
    "`interactive` or `batch`",
    "Sets the priority [class](admission.md#classes). If it is absent, the field `service_tier` "
    "decides, and after that the key.",
)
OVERFLOW_HEADER = ClientHeader(
    "x-antefix-overflow",
    "`never`, `allow` or `only`",
    "Sets whether the pool's [overflow model](admission.md#the-overflow-contract) may answer. The "
    "default is `allow`.",
)
POLICY_HEADER = ClientHeader(
    "x-antefix-policy",
    ", ".join(f"`{name}`" for name in POLICY_NAMES),
    "Sets the routing [policy](routing.md#policies). Operators and tenants with "
    "`policy_header` may send it. If only one tenant has keys, it may send it too.",
)
SESSION_HEADER = ClientHeader(
    "x-session-id",
    "string",
    "With the policy `session`, all requests of a tenant with the same value go to the same "
    "replica. The pool's `session_header` can name a different header.",
)
TRACEPARENT = ClientHeader(
    "traceparent",
    "W3C trace context",
    "The spans of the gateway and the engine join this [trace](logs-and-traces.md#traces).",
)
TRACESTATE = ClientHeader(
    "tracestate", "W3C trace context", "Belongs to `traceparent`, as in W3C trace context."
)
ACCEPT = ClientHeader("accept", "media types", "Read only for `/`, which redirects browsers.")
IF_NONE_MATCH = ClientHeader(
    "if-none-match", "entity tag", "Read only for the files of the web UI, which can answer 304."
)
