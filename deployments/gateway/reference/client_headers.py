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
        "The [key](keys.md), for endpoints that need one.",
    ),
    ClientHeader(
        "x-api-key",
        "KEY",
        "The key, as clients of Anthropic's API send it. `authorization` comes first.",
    ),
    ClientHeader(
        "anthropic-version",
        "text",
        "With any value, models and errors of endpoints that no engine serves have Anthropic's "
        "form.",
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
        "Names the request in the answer, logs, traces and explanations. Without it, or for "
        "another form, the gateway makes an id.",
    ),
    ClientHeader(
        "x-antefix-timeout",
        "number, seconds",
        "The request must finish this long after it arrives. The default and the maximum are "
        "`gateway.request_timeout_s`.",
    ),
    ClientHeader(
        "x-antefix-priority",
        "`interactive` or `batch`",
        "Sets the priority [class](admission.md#classes). Without it the field `service_tier` "
        "decides, then the key.",
    ),
    ClientHeader(
        OVERFLOW_HEADER,
        "`never`, `allow` or `only`",
        "Says whether the pool's [overflow model](admission.md#the-overflow-contract) may "
        "answer. The default is `allow`.",
    ),
    ClientHeader(
        POLICY_HEADER,
        ", ".join(f"`{name}`" for name in POLICY_NAMES),
        "Sets the routing [policy](routing.md#policies). Only operators, tenants with "
        "`policy_header` and the only tenant with keys may send it.",
    ),
    ClientHeader(
        "x-antefix-resume",
        "text, an id from an answer",
        "Asks for the rest of a stream whose "
        "[gateway was lost](resuming.md#when-a-gateway-is-lost). The body must be that of the "
        "first request.",
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
        "The spans of the gateway and the engine join this [trace](logs-and-traces.md#traces).",
    ),
    ClientHeader("tracestate", "W3C trace context", "Goes with `traceparent`."),
    ClientHeader("accept", "media types", "Only read at `/`, which redirects browsers."),
    ClientHeader("if-none-match", "entity tag", "Only read for the page, which answers 304."),
)

_OF_ENGINE = "Absent if the engine does not report it."

RESPONSE_HEADERS = (
    ClientHeader(
        "x-request-id",
        "text",
        "The request's id. Answers of engines and errors have it, except most errors of "
        "[connections](#connections).",
    ),
    ClientHeader("request-id", "text", "The same id, in Anthropic's form."),
    ClientHeader("x-antefix-replica", "text", "The replica that answered."),
    ClientHeader("x-antefix-model", "text", "The model that answered."),
    ClientHeader(
        "x-antefix-policy",
        "text",
        "The policy that chose the replica. Resumed streams lack it and the other figures of the "
        "placement.",
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
        "Predicted time from the placement to the first token. Present if the gateway predicted a "
        "time for this replica.",
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
        "Prompt tokens that the prefix index expected there. Present with "
        "`x-antefix-predicted-ttft-ms`.",
    ),
    ClientHeader(
        "x-antefix-resume",
        "text",
        "The id by which a client may ask for the rest of this stream, if "
        "`gateway.resume_within_s` is above 0.",
    ),
    ClientHeader(
        "x-antefix-resumed",
        "`continued`",
        "Another engine [continues](resuming.md#exact-continued-or-off) the answer, and its "
        "tokens may differ.",
    ),
    ClientHeader(
        "x-antefix-budget",
        "`share`",
        "Redis is unavailable, and the tenant's limits are divided among the gateways.",
    ),
    *(
        ClientHeader(f"x-ratelimit-{what}-{kind}", type_, meaning)
        for kind in ("requests", "tokens")
        for what, type_, meaning in (
            (
                "limit",
                "whole number",
                "The tenant's [limit](budgets.md#what-clients-see) of requests or tokens a "
                "minute, if it has one.",
            ),
            ("remaining", "whole number", "What is left of it after this request."),
            ("reset", "duration, such as `1m2s`", "When all of the limit is available again."),
        )
    ),
    ClientHeader(
        "retry-after",
        "whole number, seconds",
        "When to try again. Many [errors](#errors) have it, and a 503 of `/health/`.",
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
