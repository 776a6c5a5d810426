"""Every endpoint of a gateway: the routes, and what docs/api.md says of them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from deployments.gateway.api import limits
from deployments.wire.headers import LONGEST_PROFILE_S
from deployments.wire.inference_paths import INFERENCE_PATHS
from observability.metrics.traffic import POOL_MINUTES, TENANT_MINUTES


class GatewayEndpoint(NamedTuple):
    """`route`: the path, in Starlette's form. `clients`: who may call it.

    `does`: whole sentences.
    """

    method: Literal["GET", "POST"]
    route: str
    clients: Literal["any client", "any key", "operators"]
    does: str

    @property
    def path(self) -> str:
        """The path in OpenAPI's form."""
        return self.route.replace(":path}", "}")

    def add_to(self, app: Starlette, answer: Callable[[Request], Awaitable[Response]]) -> None:
        app.add_route(self.route, answer, methods=[self.method])


MODELS = GatewayEndpoint(
    "GET",
    "/v1/models",
    "any key",
    "Lists the models that the key may use. With the header `anthropic-version`, the list has the "
    "same structure as Anthropic's and supports `limit`, `after_id` and `before_id`. Without "
    "`limit`, it contains all models.",
)
MODEL = GatewayEndpoint("GET", "/v1/models/{model:path}", "any key", "Describes one model.")
STATUS = GatewayEndpoint(
    "GET",
    "/antefix/status",
    "any key",
    "Returns pools, replicas, queues, predicted TTFT, traffic and budgets. Operators can "
    "also see addresses and loads, and the queues, traffic and budgets of other tenants. If only "
    f"one tenant has keys, it can see addresses and loads too. `?minutes=N`, from 1 to "
    f"{POOL_MINUTES}, adds what this gateway process served in that time. The traffic of a "
    f"tenant is kept for {TENANT_MINUTES} minutes.",
)
EXPLANATION = GatewayEndpoint(
    "GET",
    "/antefix/requests/{request_id}",
    "any key",
    "Returns the [explanation](routing.md#every-decision-explained) of a request of the key's "
    f"tenant, for at least {limits.EXPLANATION_TTL_S} s after its end. Operators can read "
    "those of all tenants.",
)
DECISIONS = GatewayEndpoint(
    "GET",
    "/antefix/decisions",
    "any key",
    f"Lists the last {limits.DECISIONS} explanations of the key's tenant, or N with `?limit=N`, "
    "newest first. Operators get those of all tenants. With `?only=failed`, only failed requests "
    "are listed.",
)
PROFILE = GatewayEndpoint(
    "POST",
    "/antefix/profile",
    "operators",
    "Starts vLLM's [profiler](profiling.md) in one engine for `?seconds=`, up to "
    f"{LONGEST_PROFILE_S:g}. `?pool=` and `?replica=` are optional if there is only one.",
)
CANARIES = GatewayEndpoint(
    "GET",
    "/antefix/canaries",
    "operators",
    "Returns each [canary](models.md#canaries) with its pool or adapter, its step and share, and "
    "what this gateway knows about it.",
)
END_CANARY = GatewayEndpoint(
    "POST",
    "/antefix/canaries/{model:path}",
    "operators",
    "Ends a canary with `?action=promote` or `?action=abort`.",
)
LOAD_ADAPTER = GatewayEndpoint(
    "POST",
    "/v1/load_lora_adapter",
    "operators",
    "Loads the [adapter](adapters.md) `lora_name` from `lora_path` for all gateways. "
    "`load_inplace: true` replaces weights that are already loaded. If several pools accept "
    "adapters, `model` names the base model.",
)
UNLOAD_ADAPTER = GatewayEndpoint(
    "POST",
    "/v1/unload_lora_adapter",
    "operators",
    "Unloads the adapter `lora_name`. Answers that have already started finish with its weights.",
)
ADAPTERS = GatewayEndpoint(
    "GET",
    "/antefix/adapters",
    "operators",
    "Lists the adapters, each with its base model, source, digest and rank, and the replicas that "
    "have it in memory.",
)
OPENAPI = GatewayEndpoint(
    "GET",
    "/openapi.json",
    "any client",
    "Describes the endpoints and the fields of the engines in OpenAPI.",
)
LIVE = GatewayEndpoint(
    "GET",
    "/health/live",
    "any client",
    "Returns 200 while the gateway and its background loops run. Otherwise it returns 503 and the "
    "loop that ended.",
)
READY = GatewayEndpoint(
    "GET",
    "/health/ready",
    "any client",
    "Returns 200 while every pool that should have a replica has one. Otherwise it returns 503 and "
    "the pools without a replica.",
)
SERVING = GatewayEndpoint(
    "GET",
    "/health/serving",
    "any client",
    "Meant for load balancers. Returns 200 from the time when the first pool is ready until the "
    "gateway shuts down, and 503 otherwise.",
)
PAGE = GatewayEndpoint(
    "GET",
    "/antefix/",
    "any client",
    "Serves the [web UI](page.md). It contains no data, and calls the API with the user's key.",
)
PAGE_FILE = GatewayEndpoint(
    "GET", "/antefix/assets/{file}", "any client", "Serves the files of the web UI."
)
ROOT = GatewayEndpoint(
    "GET",
    "/",
    "any client",
    "Redirects browsers to `/antefix/`. Clients whose `Accept` header does not include HTML get "
    "404.",
)

ENDPOINTS = (
    *(
        GatewayEndpoint("POST", path.path, "any key", path.does)
        for path in INFERENCE_PATHS.values()
    ),
    *(each for each in tuple(vars().values()) if isinstance(each, GatewayEndpoint)),
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
