"""Error codes of canaries and adapters."""

from __future__ import annotations

from deployments.process.error_code import ErrorCode
from deployments.wire import lora_adapter

UNKNOWN_CANARY = ErrorCode(
    "unknown_canary",
    404,
    "The model has no canary.",
    "`antefix canary status` lists the canaries.",
)
CANARY_CHANGED = ErrorCode(
    "canary_changed",
    409,
    "The canary changed at the same moment.",
    "Check the state of the canary. If the change is still needed, send it again.",
    retry="stop",
)
NO_ADAPTERS = ErrorCode(
    "no_adapters",
    400,
    "No pool allows adapters to be loaded while it serves.",
    "Set [`adapters.sources`](adapters.md) in a pool.",
)
ADAPTER_EXISTS = ErrorCode(
    "adapter_exists",
    400,
    "An adapter with this name is already loaded.",
    "Send `load_inplace: true` to replace the weights, or unload the adapter first.",
)
TOO_MANY_ADAPTERS = ErrorCode(
    "too_many_adapters",
    400,
    "The fleet has reached its maximum number of adapters.",
    "Unload an adapter that is not used.",
)
UNUSABLE_ADAPTER = ErrorCode(
    "unusable_adapter",
    400,
    "An engine tried the adapter and cannot serve it, because of its source, files, rank or base "
    "model.",
    "Follow the message, which names the wrong value.",
)
UNKNOWN_ADAPTER = ErrorCode(
    "unknown_adapter",
    404,
    "No adapter with this name is loaded.",
    "`antefix adapter list` lists the adapters.",
)
ADAPTER_UNAVAILABLE = ErrorCode(
    lora_adapter.ADAPTER_UNAVAILABLE,
    503,
    "No engine can load the adapter of the request, because its files have changed or are gone.",
    "Ask an operator to load it again. The logs of the engines show the reason.",
    retry="yes",
)
ADAPTER_NOT_LOADED = ErrorCode(
    "adapter_not_loaded",
    502,
    "No engine that was asked to load the adapter answered.",
    "See the logs of the replicas for the reason. Then load the adapter again.",
    retry="stop",
)
