"""Every header that a gateway reads from clients or sends to them, as docs/api.md lists them.

`deployments.wire.headers` has those between gateways and replicas.
"""

from __future__ import annotations

from typing import NamedTuple

from deployments.gateway.intake.request_options import OVERFLOW_HEADER, POLICY_HEADER
from router.policies import POLICY_NAMES


class ClientHeader(NamedTuple):
    """`type`: what its value is, with the unit. `meaning`: whole sentences."""

    name: str
    type: str
    meaning: str


REQUEST_HEADERS = (
    ClientHeader(
        "authorization",
        "`Bearer KEY`",
        "Required wherever the endpoint needs a key, unless `x-api-key` has it. "
        "See [keys.md](keys.md).",
    ),
    ClientHeader(
        "x-api-key",
        "KEY",
        "The key, as clients of Anthropic's API send it. `Authorization: Bearer` comes first.",
    ),
    ClientHeader(
        "anthropic-version",
        "text",
        "Models and errors of endpoints that no engine serves have Anthropic's form. The value is "
        "not read.",
    ),
    ClientHeader("content-type", "`application/json`", "Required with every body."),
    ClientHeader(
        "content-encoding", "`identity`", "Optional. The gateway takes no compressed body."
    ),
    ClientHeader(
        "content-length",
        "whole number, bytes",
        "Optional. The gateway rejects a body over `gateway.max_body_bytes` before it arrives.",
    ),
    ClientHeader(
        "x-request-id",
        "1 to 128 letters, digits and `. _ : = + @ ~ # -`",
        "Names the request in the answer, logs, traces and explanations. The gateway makes an id "
        "when the header is absent or has another form.",
    ),
    ClientHeader(
        "x-antefix-timeout",
        "number, seconds",
        "The request must finish this long after it arrives. The header may shorten "
        "`gateway.request_timeout_s`, which is the default, and never lengthen it.",
    ),
    ClientHeader(
        "x-antefix-priority",
        "`interactive` or `batch`",
        "Sets the priority class. Without it the field `service_tier` decides, then the key. "
        "See [admission.md](admission.md#classes).",
    ),
    ClientHeader(
        OVERFLOW_HEADER,
        "`never`, `allow` or `only`",
        "Says whether the pool's overflow model may answer. The default is `allow`. "
        "See [admission.md](admission.md#the-overflow-contract).",
    ),
    ClientHeader(
        POLICY_HEADER,
        ", ".join(f"`{name}`" for name in POLICY_NAMES),
        "Sets the routing policy. Operators may send it, and so may tenants with `policy_header` "
        "and a tenant that is the only one with keys. See [routing.md](routing.md#policies).",
    ),
    ClientHeader(
        "x-antefix-resume",
        "text, an id from an answer",
        "Asks for the rest of a stream whose gateway was lost. The body must be that of the first "
        "request. See [resuming.md](resuming.md#when-a-gateway-is-lost).",
    ),
    ClientHeader(
        "x-antefix-resume-events",
        "whole number, events",
        "Required with `x-antefix-resume`: how many whole events of the stream the client has.",
    ),
    ClientHeader(
        "x-session-id",
        "text",
        "The policy `session` sends one tenant's requests with the same value to one replica. "
        "The pool's `session_header` names another header.",
    ),
    ClientHeader(
        "traceparent",
        "W3C trace context",
        "The spans of the gateway and the engine join this trace. "
        "See [logs-and-traces.md](logs-and-traces.md#traces).",
    ),
    ClientHeader("tracestate", "W3C trace context", "Goes with `traceparent`."),
    ClientHeader("accept", "media types", "Only read at `/`, which redirects browsers."),
    ClientHeader("if-none-match", "entity tag", "Only read for the page, which answers 304."),
)

_SERVED = "Every answer that an engine made has it."
_PLACED = "Present when the gateway predicted a time for the replica that answered."
_OF_ENGINE = "Absent when the engine does not report it."
_LIMITED = "Only for tenants with such [limits](budgets.md#what-clients-see)."

RESPONSE_HEADERS = (
    ClientHeader(
        "x-request-id",
        "text",
        "The request's id. Answers of engines have it, and so do errors, except most errors of "
        "[connections](#connections).",
    ),
    ClientHeader(
        "request-id", "text", "The same id. Answers in the form of Anthropic's API have it, too."
    ),
    ClientHeader("x-antefix-replica", "text", f"The replica that answered. {_SERVED}"),
    ClientHeader("x-antefix-model", "text", f"The model that answered. {_SERVED}"),
    ClientHeader(
        "x-antefix-policy",
        "text",
        "The policy that chose the replica. Resumed streams lack this header and the other "
        "figures of the placement.",
    ),
    ClientHeader(
        "x-antefix-admission",
        "`admitted` or `overflowed`",
        "`overflowed` means that the pool's overflow model answered.",
    ),
    ClientHeader(
        "x-antefix-ttft-ms",
        "number, milliseconds",
        "Time from the complete body to the first token.",
    ),
    ClientHeader(
        "x-antefix-engine-ttft-ms",
        "number, milliseconds",
        "Time from the placement to the first token.",
    ),
    ClientHeader(
        "x-antefix-predicted-ttft-ms",
        "number, milliseconds",
        f"Predicted time from the placement to the first token. {_PLACED}",
    ),
    ClientHeader(
        "x-antefix-index-ms", "number, milliseconds", "Time that the prefix index lookup took."
    ),
    ClientHeader(
        "x-antefix-prompt-tokens",
        "whole number, tokens",
        f"The prompt's length as the engine counts it. {_OF_ENGINE}",
    ),
    ClientHeader(
        "x-antefix-cached-tokens",
        "whole number, tokens",
        f"Prompt tokens that the engine found in its prefix cache. {_OF_ENGINE}",
    ),
    ClientHeader(
        "x-antefix-cached-tokens-predicted",
        "whole number, tokens",
        f"Prompt tokens that the prefix index expected there. {_PLACED}",
    ),
    ClientHeader(
        "x-antefix-resume",
        "text",
        "The id by which a client may ask for the rest of this stream. Only streams have it, "
        "where `gateway.resume_within_s` is above 0.",
    ),
    ClientHeader(
        "x-antefix-resumed",
        "`continued`",
        "Another engine continues the answer, and its tokens may differ from those of the first. "
        "See [resuming.md](resuming.md#exact-continued-or-off).",
    ),
    ClientHeader(
        "x-antefix-budget",
        "`share`",
        "Redis is unavailable, and the tenant's limits are divided among the gateways.",
    ),
    *(
        ClientHeader(f"x-ratelimit-{what}-{kind}", type_, f"{meaning} {_LIMITED}")
        for kind in ("requests", "tokens")
        for what, type_, meaning in (
            ("limit", "whole number", "The limit of requests or tokens a minute."),
            ("remaining", "whole number", "What is left of it after this request."),
            ("reset", "duration, such as `1m2s`", "When all of the limit is available again."),
        )
    ),
    ClientHeader(
        "retry-after",
        "whole number, seconds",
        "When to try again. See [Errors](#errors) for the codes that have it. A 503 of `/health/` "
        "has it, too.",
    ),
    ClientHeader(
        "x-should-retry",
        "`false`",
        "The same request would fail again. OpenAI's and Anthropic's clients obey it.",
    ),
    ClientHeader("www-authenticate", "`Bearer`", "Every 401 has it."),
    ClientHeader("allow", "methods", "Every 405 has it, with the methods of the path."),
    ClientHeader(
        "accept-encoding",
        "`identity`",
        "A 415 with the code `unsupported_content_encoding` has it.",
    ),
    ClientHeader(
        "location",
        "relative URL",
        "A 307 has it: from `/` to the page, and between a path with and without its last slash.",
    ),
    ClientHeader(
        "cache-control", "`no-cache`", "Streams, the page and the redirect from `/` have it."
    ),
    ClientHeader(
        "x-accel-buffering", "`no`", "Streams have it, so that nginx does not buffer them."
    ),
    ClientHeader("vary", "`accept`", "The redirect from `/` has it."),
    ClientHeader("etag", "entity tag", "The page's files have it."),
    ClientHeader("content-security-policy", "policy", "The page's files have it."),
    ClientHeader("x-content-type-options", "`nosniff`", "The page's files have it."),
    ClientHeader("referrer-policy", "`no-referrer`", "The page's files have it."),
)
