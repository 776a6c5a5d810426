"""Error codes of load and of failures."""

from __future__ import annotations

from deployments.gateway.api.limits import FATAL_REQUEST_S
from deployments.process.error_code import ErrorCode
from observability.traces.request_record import OVER_BUDGET

_FATAL_MINUTES = f"{FATAL_REQUEST_S // 60} minutes"
RATE_LIMIT_EXCEEDED = ErrorCode(
    OVER_BUDGET,
    429,
    "The tenant has used up its requests, tokens or concurrent requests. Or it is limited to one "
    "request at a time, because engines died or ran out of memory while they ran its requests.",
    "Send fewer or shorter requests. While the tenant is limited to one request at a time, wait "
    "for `Retry-After`. See [Budgets](budgets.md).",
    retry="Retry-After",
)
BUDGET_UNKNOWN = ErrorCode(
    "budget_unknown",
    503,
    "The gateway does not know what is left of the tenant's limits. Redis is unavailable or full, "
    "or has lost its data.",
    "Wait for `Retry-After`. See [Budgets](budgets.md#when-redis-is-unavailable).",
    retry="Retry-After",
)
OVER_CAPACITY = ErrorCode(
    "over_capacity",
    429,
    "No replica is predicted to meet the SLO, and the request can neither wait nor overflow.",
    "Send fewer requests at the same time. See [Admission](admission.md).",
    retry="Retry-After",
)
QUEUE_FULL = ErrorCode(
    "queue_full",
    429,
    "Every replica is busy, and `max_queued_requests` requests are already queued.",
    "Send fewer requests at the same time. `Retry-After` is the predicted time until the "
    "queued requests have started, or 1 s if [no prediction](admission.md#decisions) exists.",
    retry="Retry-After",
)
GATEWAY_FULL = ErrorCode(
    "gateway_full",
    503,
    "The bodies of the requests in progress have reached `gateway.max_bodies_bytes`, or those of "
    "the tenant have reached its share.",
    "Send smaller bodies, or fewer at the same time.",
    retry="Retry-After",
)
NO_REPLICA = ErrorCode(
    "no_replica",
    503,
    "No replica can serve the request, and none is predicted to start in time. For "
    "`/openapi.json`, no engine has described its API yet.",
    "Send the request again after `Retry-After`. If it set a short `x-antefix-timeout`, allow "
    "more time. See [Admission](admission.md#no-replica).",
    retry="Retry-After",
)
ENGINE_UNAVAILABLE = ErrorCode(
    "engine_unavailable",
    503,
    "The engine was lost, and no other engine completed the answer: `gateway.retries` further "
    "attempts failed, or the answer could not be resumed.",
    "Send the request again.",
    retry="Retry-After",
)
ENGINES_LOST = ErrorCode(
    "engines_lost",
    503,
    "Every engine that ran the request was lost. Gateways then reject identical requests for "
    f"{_FATAL_MINUTES}. If several requests of a tenant end like this, gateways do not retry "
    f"the tenant's requests on a second engine for {_FATAL_MINUTES}. During that time, a "
    "request that loses its only engine gets this code without `x-should-retry`, so clients may "
    "send it again once.",
    "Change the request, because it may be the cause. Otherwise, send it again after "
    "`Retry-After`.",
    retry="Retry-After, stop",
)
ENGINE_OUT_OF_MEMORY = ErrorCode(
    "engine_out_of_memory",
    503,
    "The replica ran out of memory before the answer had a token. Gateways do not retry the "
    f"request, and reject identical requests for {_FATAL_MINUTES}. Meanwhile, the tenant "
    "is limited to one request at a time if no other tenant's request was running there.",
    "Make the request smaller, for example its images or its prompt. Otherwise, send it again "
    "after `Retry-After`.",
    retry="Retry-After, stop",
)
ENGINE_ERROR = ErrorCode(
    "engine_error",
    500,
    "The engine reported an internal error, and so did those of `gateway.retries` further "
    "attempts.",
    "Send the request again, with a longer wait each time. If the error persists, report the id of "
    "the request to the operators.",
    retry="yes",
    also="the engine's 5xx",
)
GATEWAY_ERROR = ErrorCode(
    "gateway_error",
    500,
    "The gateway failed unexpectedly.",
    "Send the request again. If it fails again, report its id to the operators.",
    retry="yes",
)
GATEWAY_STOPPED = ErrorCode(
    "gateway_stopped",
    503,
    "The gateway shut down before the answer was complete.",
    "Send the request again.",
    retry="Retry-After",
)
DEADLINE_EXCEEDED = ErrorCode(
    "deadline_exceeded",
    504,
    "The request did not finish within `x-antefix-timeout` or `gateway.request_timeout_s`.",
    "Request fewer tokens. If the request set a short `x-antefix-timeout`, allow more time.",
    retry="stop",
)
NO_REDIS = ErrorCode(
    "no_redis",
    503,
    "Redis does not answer. It stores the explanations, canaries and adapters.",
    "Try again later. Inference works without Redis. For tenants with limits, see "
    "[Budgets](budgets.md#when-redis-is-unavailable).",
    retry="Retry-After",
)
