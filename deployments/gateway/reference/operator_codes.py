"""Error codes of what operators ask for, as docs/api.md lists them."""

from __future__ import annotations

from deployments.gateway.reference.error_code import ErrorCode

CANARY_CODES = (
    ErrorCode(
        "unknown_canary",
        404,
        "The model has no canary.",
        "`antefix canary status` lists the canaries.",
    ),
    ErrorCode(
        "canary_changed",
        409,
        "The canary changed at the same moment.",
        "Look at it, and try again.",
        retry="stop",
    ),
)

ADAPTER_CODES = (
    ErrorCode(
        "no_adapters",
        400,
        "No pool takes adapters while it serves.",
        "Set [`adapters.sources`](adapters.md) of a pool.",
    ),
    ErrorCode(
        "adapter_exists",
        400,
        "An adapter of this name is loaded.",
        "Send `load_inplace: true` to replace its weights, or unload it first.",
    ),
    ErrorCode(
        "too_many_adapters",
        400,
        "The fleet has as many adapters as it may have.",
        "Unload one that is not used.",
    ),
    ErrorCode(
        "unusable_adapter",
        400,
        "An engine tried the adapter and cannot serve it: its source, files, rank or base model.",
        "Follow the message, which names the value.",
    ),
    ErrorCode(
        "unknown_adapter",
        404,
        "No adapter of this name is loaded.",
        "`antefix adapters list` lists the adapters.",
    ),
    ErrorCode(
        "adapter_unavailable",
        503,
        "No engine can load the adapter of the request: its files have changed or are gone.",
        "Ask an operator to load it again. The engines' log says why.",
        retry="yes",
    ),
    ErrorCode(
        "adapter_not_loaded",
        502,
        "No engine that should try the adapter answered.",
        "Try again. The logs of the replicas say more.",
        retry="stop",
    ),
)
