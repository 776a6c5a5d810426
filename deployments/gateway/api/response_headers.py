"""Every header that a gateway sends to clients."""

from __future__ import annotations

from deployments.gateway.api.client_header import ClientHeader
from deployments.wire import headers

_OF_ENGINE = "Absent if the engine does not report it."


def _rate_limit_headers(kind: str) -> tuple[ClientHeader, ClientHeader, ClientHeader]:
    return (
        ClientHeader(
            f"x-ratelimit-limit-{kind}",
            "integer",
            "The tenant's [limit](budgets.md#what-clients-see) of requests or tokens per minute. "
            "Absent if there is none.",
        ),
        ClientHeader(
            f"x-ratelimit-remaining-{kind}",
            "integer",
            "What is left of this limit after this request.",
        ),
        ClientHeader(
            f"x-ratelimit-reset-{kind}",
            "duration, such as `1m2s`",
            "The time until the whole limit is available again.",
        ),
    )


REQUEST_ID_HEADER = ClientHeader(
    "x-request-id",
    "string",
    "The id of the request. Sent with every answer of an engine and every error, except most "
    "errors of [connections](#connections).",
)
ANTHROPIC_ID_HEADER = ClientHeader(
    "request-id", "string", "The same id, in the header that Anthropic's API uses."
)
REPLICA_HEADER = ClientHeader("x-antefix-replica", "string", "The replica that answered.")
MODEL_HEADER = ClientHeader("x-antefix-model", "string", "The model that answered.")
POLICY_HEADER = ClientHeader("x-antefix-policy", "string", "The policy that chose the replica.")
ADMISSION_HEADER = ClientHeader(
    "x-antefix-admission",
    "`admitted` or `overflowed`",
    "`overflowed` means that the pool's overflow model answered.",
)
LEFT_OUT_TOOLS_HEADER = ClientHeader(
    "x-antefix-left-out-tools",
    "tool types, separated by commas",
    "The types of the [tools that the gateway removed](#tools-that-antefix-does-not-run) from the "
    "request. The model answered without them.",
)
TTFT_HEADER = ClientHeader(
    "x-antefix-ttft-ms",
    "number, milliseconds",
    "Time from the complete body to the first token.",
)
ENGINE_TTFT_HEADER = ClientHeader(
    "x-antefix-engine-ttft-ms",
    "number, milliseconds",
    "Time from the choice of the replica to the first token.",
)
PREDICTED_TTFT_HEADER = ClientHeader(
    "x-antefix-predicted-ttft-ms",
    "number, milliseconds",
    "Predicted time from the choice of the replica to the first token. Absent if the gateway did "
    "not predict a time for this replica.",
)
INDEX_HEADER = ClientHeader(
    "x-antefix-index-ms", "number, milliseconds", "Time that the lookup in the prefix index took."
)
PROMPT_TOKENS_HEADER = ClientHeader(
    headers.PROMPT_TOKENS_HEADER,
    "integer, tokens",
    f"Length of the prompt, as the engine counts it. {_OF_ENGINE}",
)
CACHED_TOKENS_HEADER = ClientHeader(
    headers.CACHED_TOKENS_HEADER,
    "integer, tokens",
    f"Number of prompt tokens that the engine found in its prefix cache. {_OF_ENGINE}",
)
PREDICTED_CACHED_TOKENS_HEADER = ClientHeader(
    "x-antefix-cached-tokens-predicted",
    "integer, tokens",
    "Number of prompt tokens that the replica had cached according to the prefix index. Sent "
    "together with `x-antefix-predicted-ttft-ms`.",
)
RESUMED_HEADER = ClientHeader(
    "x-antefix-resumed",
    "`continued`",
    "Another engine [resumed](resuming.md#exact-continued-or-off) the answer, and its tokens may "
    "differ.",
)
SHARE_HEADER = ClientHeader(
    "x-antefix-budget",
    "`share`",
    "Redis is unavailable, so the tenant's limits are divided among the gateways.",
)
(
    REQUESTS_LIMIT_HEADER,
    REQUESTS_REMAINING_HEADER,
    REQUESTS_RESET_HEADER,
) = _rate_limit_headers("requests")
TOKENS_LIMIT_HEADER, TOKENS_REMAINING_HEADER, TOKENS_RESET_HEADER = _rate_limit_headers("tokens")
RETRY_AFTER = ClientHeader(
    "retry-after",
    "integer, seconds",
    "The time after which the client should try again. Sent with many [errors](#errors), and with "
    "a 503 of `/health/`.",
)
SHOULD_RETRY = ClientHeader(
    "x-should-retry",
    "`false`",
    "Clients should not send the same request again automatically. The [remedy](#errors) of the "
    "error says what to do first. The client libraries of OpenAI and Anthropic obey this header.",
)
WWW_AUTHENTICATE = ClientHeader("www-authenticate", "`Bearer`", "Sent with every 401.")
ALLOW = ClientHeader("allow", "methods", "The methods that the path supports. Sent with every 405.")
ACCEPT_ENCODING = ClientHeader(
    "accept-encoding",
    "`identity`",
    "Sent with a 415 that has the code `unsupported_content_encoding`.",
)
LOCATION = ClientHeader(
    "location",
    "relative URL",
    "Sent with a 307, which redirects from `/` to the web UI and between a path with and without a "
    "final slash.",
)
CACHE_CONTROL = ClientHeader(
    "cache-control", "`no-cache`", "Sent with streams, the web UI and the redirect from `/`."
)
ACCEL_BUFFERING = ClientHeader(
    "x-accel-buffering", "`no`", "Sent with streams, so that nginx does not buffer them."
)
VARY = ClientHeader("vary", "`accept`", "Sent with the redirect from `/`.")
ETAG = ClientHeader("etag", "entity tag", "Sent with the files of the web UI.")
CONTENT_SECURITY_POLICY = ClientHeader(
    "content-security-policy", "policy", "Sent with the files of the web UI."
)
CONTENT_TYPE_OPTIONS = ClientHeader(
    "x-content-type-options", "`nosniff`", "Sent with the files of the web UI."
)
REFERRER_POLICY = ClientHeader(
    "referrer-policy", "`no-referrer`", "Sent with the files of the web UI."
)
