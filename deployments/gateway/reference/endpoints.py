"""Every endpoint of a gateway, as docs/api.md lists them."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from deployments.gateway.inquiries.profile_requests import ProfileRequests
from deployments.gateway.record.explanations import DECISIONS, EXPLANATION_TTL_S
from deployments.wire.inference_paths import INFERENCE_PATHS
from observability.traffic import POOL_MINUTES, TENANT_MINUTES


class GatewayEndpoint(NamedTuple):
    """`clients`: who may call it. `does`: whole sentences."""

    method: Literal["GET", "POST"]
    path: str
    clients: Literal["any client", "any key", "operators"]
    does: str


ENDPOINTS = (
    *(
        GatewayEndpoint("POST", path.path, "any key", path.does)
        for path in INFERENCE_PATHS.values()
    ),
    GatewayEndpoint(
        "GET",
        "/v1/models",
        "any key",
        "Lists the models that the key may use, with the header `anthropic-version` in "
        "Anthropic's form.",
    ),
    GatewayEndpoint("GET", "/v1/models/{model}", "any key", "Describes one model."),
    GatewayEndpoint(
        "GET",
        "/antefix/status",
        "any key",
        "Returns pools, replicas, queues, predicted TTFT, traffic and tenants' budgets. Only "
        "operators, and the only tenant with keys, see addresses, loads, and other tenants' "
        f"queues, traffic and budgets. `?minutes=N`, from 1 to {POOL_MINUTES}, adds what this "
        "gateway process served in that time. A tenant's own traffic is kept for "
        f"{TENANT_MINUTES} minutes.",
    ),
    GatewayEndpoint(
        "GET",
        "/antefix/requests/{request_id}",
        "any key",
        "Returns the [explanation](routing.md#every-decision-explained) of a request of the "
        f"key's tenant, for operators of any, until {EXPLANATION_TTL_S} s after its end.",
    ),
    GatewayEndpoint(
        "GET",
        "/antefix/decisions",
        "any key",
        f"Lists the last {DECISIONS} explanations, or `?limit=N`, newest first: of the key's "
        "tenant, or for operators of all. `?only=failed` omits other requests.",
    ),
    GatewayEndpoint(
        "POST",
        "/antefix/profile",
        "operators",
        "Lets vLLM [profile](profiling.md) one engine for `?seconds=`, up to "
        f"{ProfileRequests.longest_s:g}. `?pool=` and `?replica=` are optional where there is "
        "only one.",
    ),
    GatewayEndpoint(
        "GET",
        "/antefix/canaries",
        "operators",
        "Returns each [canary](models.md#canaries): its pool or adapter, step and share, and what "
        "this gateway knows of it.",
    ),
    GatewayEndpoint(
        "POST",
        "/antefix/canaries/{model}",
        "operators",
        "Ends a canary with `?action=promote` or `?action=abort`.",
    ),
    GatewayEndpoint(
        "POST",
        "/v1/load_lora_adapter",
        "operators",
        "Loads the [adapter](adapters.md) `lora_name` from `lora_path`, for all gateways. "
        "`load_inplace: true` replaces loaded weights. `model` names the base model where "
        "several pools take adapters.",
    ),
    GatewayEndpoint(
        "POST",
        "/v1/unload_lora_adapter",
        "operators",
        "Unloads the adapter `lora_name`. Answers that have begun end with its weights.",
    ),
    GatewayEndpoint(
        "GET",
        "/antefix/adapters",
        "operators",
        "Lists the adapters: base model, source, digest, rank, and the replicas that have it in "
        "memory.",
    ),
    GatewayEndpoint(
        "GET",
        "/openapi.json",
        "any client",
        "Describes the endpoints and the engines' fields in OpenAPI.",
    ),
    GatewayEndpoint(
        "GET",
        "/health/live",
        "any client",
        "Returns 200 while the gateway and its background loops run, otherwise 503 and the loop "
        "that ended.",
    ),
    GatewayEndpoint(
        "GET",
        "/health/ready",
        "any client",
        "Returns 200 while every pool that should have a replica has one, otherwise 503 and the "
        "other pools.",
    ),
    GatewayEndpoint(
        "GET",
        "/health/serving",
        "any client",
        "For load balancers: returns 200 from the first ready pool until the gateway shuts down, "
        "otherwise 503.",
    ),
    GatewayEndpoint(
        "GET",
        "/antefix/",
        "any client",
        "Serves the [page](page.md) for people. It holds no data, and calls the API with the "
        "reader's key.",
    ),
    GatewayEndpoint("GET", "/antefix/assets/{file}", "any client", "Serves the page's files."),
    GatewayEndpoint(
        "GET",
        "/",
        "any client",
        "Redirects browsers to `/antefix/`. Clients whose `Accept` does not name HTML get 404.",
    ),
)

_LINK = re.compile(r"\[([^]]*)\]\([^)]*\)")


def openapi_paths() -> dict[str, dict[str, Any]]:
    """The gateway's own endpoints, those that no engine describes, as OpenAPI has them."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        if endpoint.path in INFERENCE_PATHS:
            continue
        described: dict[str, Any] = {
            "summary": _LINK.sub(r"\1", endpoint.does),
            "parameters": [
                {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"\{(\w+)\}", endpoint.path)
            ],
            "responses": {"200": {"description": "OK"}},
        }
        if endpoint.clients == "any client":
            described["security"] = []
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    return paths
