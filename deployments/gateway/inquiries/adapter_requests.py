"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, GET /antefix/adapters, for operators.

The first two are vLLM's endpoints, with its fields. Here they apply to all gateways and replicas.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway.api import endpoints
from deployments.gateway.api.load_codes import NO_REPLICA
from deployments.gateway.api.operator_codes import (
    ADAPTER_EXISTS,
    NO_ADAPTERS,
    TOO_MANY_ADAPTERS,
    UNKNOWN_ADAPTER,
)
from deployments.gateway.api.request_codes import (
    BODY_TOO_LARGE,
    INVALID_JSON,
    INVALID_VALUE,
    MISSING_VALUE,
)
from deployments.gateway.inquiries.adapter_loads import AdapterLoads
from deployments.gateway.intake.api_errors import ApiError, no_redis
from deployments.gateway.intake.api_keys import KeyHolder
from deployments.gateway.intake.in_force import InForce
from deployments.gateway.models.shared_adapters import (
    MOST_ADAPTERS,
    PERIOD_S,
    LoadedAdapter,
    is_usable,
)
from deployments.gateway.pool.pools import Pools
from router.redis.redis_client import REDIS_FAILURES

# The time until every gateway that reaches Redis has read a change.
KNOWN_AFTER_S = PERIOD_S + 0.5
MAX_BODY_BYTES = 16_384


class AdapterRequests:
    """The endpoints. `holder_of` returns the holder of a request's key, and raises ApiError 401."""

    def __init__(
        self,
        in_force: InForce,
        holder_of: Callable[[Request], KeyHolder],
        pools: Pools,
        loads: AdapterLoads,
    ) -> None:
        self._in_force = in_force
        self._holder_of = holder_of
        self._pools = pools
        self._adapters = pools.adapters
        self._loads = loads

    def add_to(self, app: Starlette) -> None:
        endpoints.ADAPTERS.add_to(app, self.show)
        endpoints.LOAD_ADAPTER.add_to(app, self.load)
        endpoints.UNLOAD_ADAPTER.add_to(app, self.unload)

    async def show(self, request: Request) -> Response:
        self._check(request)
        await self._read()
        found = self._adapters.by_name.items()
        return JSONResponse({name: self._status(loaded) for name, loaded in sorted(found)})

    async def load(self, request: Request) -> Response:
        """Load an adapter: `{"lora_name", "lora_path", "load_inplace", "model"}`.

        `model` names the pool's model. It is required if several pools accept adapters.
        """
        self._check(request)
        body = await _body_of(request)
        name, source = _text(body, "lora_name"), _text(body, "lora_path")
        if not is_usable(name):
            message = (
                f"'lora_name' is {name[:100]!r}, but only letters, digits and ._:/@+- are allowed,"
                " up to 128 characters. Choose another name."
            )
            raise ApiError(INVALID_VALUE, message, param="lora_name")
        if self._adapters.is_taken(name):
            message = f"{name!r} is already the name of a model. Choose another name."
            raise ApiError(INVALID_VALUE, message, param="lora_name")
        await self._read()
        known, pool = self._adapters.by_name.get(name), self._pool_of(body)
        if known is not None and body.get("load_inplace") is not True:
            message = (
                f"The adapter {name!r} is already loaded. Set 'load_inplace' to true to replace its"
                " weights, or unload it first."
            )
            raise ApiError(ADAPTER_EXISTS, message, param="lora_name")
        if known is not None and known.pool != pool:
            where = f"already loaded in the pool {known.pool!r}"
            message = f"The adapter {name!r} is {where}. Unload it first."
            raise ApiError(ADAPTER_EXISTS, message, param="lora_name")
        if known is None and len(self._adapters.by_name) >= MOST_ADAPTERS:
            message = (
                f"The fleet has reached its limit of {MOST_ADAPTERS:,} adapters. Unload one first."
            )
            raise ApiError(TOO_MANY_ADAPTERS, message, param="lora_name")
        fetched = await self._loads.fetch(self._engines_of(pool), name, source)
        loaded = LoadedAdapter(fetched.adapter, pool, fetched.rank, fetched.size, time.time())
        try:
            await self._adapters.put(loaded)
        except REDIS_FAILURES:
            raise no_redis("the list of adapters") from None
        if known is not None:
            await asyncio.sleep(KNOWN_AFTER_S)
        return JSONResponse({name: self._status(loaded)})

    async def unload(self, request: Request) -> Response:
        """Unload an adapter: `{"lora_name"}`. Open answers end with its weights."""
        self._check(request)
        name = _text(await _body_of(request), "lora_name")
        await self._read()
        if name not in self._adapters.by_name:
            names = ", ".join(sorted(self._adapters.by_name)) or "none"
            message = f"No adapter named {name[:100]!r} is loaded. Loaded adapters: {names}."
            raise ApiError(UNKNOWN_ADAPTER, message, param="lora_name")
        try:
            await self._adapters.remove(name)
        except REDIS_FAILURES:
            raise no_redis("the list of adapters") from None
        await asyncio.sleep(KNOWN_AFTER_S)
        return JSONResponse({"unloaded": name})

    def _check(self, request: Request) -> None:
        settings = self._in_force.fleet.gateway
        self._holder_of(request).check_operator(settings, "load and unload adapters")

    def _pool_of(self, body: dict[str, Any]) -> str:
        accepting = {
            name: pool
            for name, pool in self._pools.by_name.items()
            if pool.settings.adapters is not None
        }
        if not accepting:
            message = "No pool of the fleet accepts adapters. Set `adapters.sources` in a pool."
            raise ApiError(NO_ADAPTERS, message)
        model = body.get("model")
        found = [name for name, pool in accepting.items() if model in (None, name, pool.model)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(sorted(pool.model for pool in accepting.values()))
        message = f"'model' is {model!r}, but it must be a model that accepts adapters: {names}."
        raise ApiError(INVALID_VALUE, message, param="model")

    def _engines_of(self, pool: str) -> list[str]:
        """Return the URLs of a pool's replicas, least loaded first. Raises ApiError 503."""
        loads = self._pools.by_name[pool].scheduler.board.loads().values()
        if not loads:
            message = f"The pool {pool!r} has no replica to load the adapter. Try again in 5 s."
            raise ApiError(NO_REPLICA, message, retry_after=5)
        by_load = sorted(loads, key=lambda load: load.queue.waiting + load.queue.running)
        return [load.url for load in by_load]

    async def _read(self) -> None:
        try:
            await self._adapters.refresh()
        except REDIS_FAILURES:
            raise no_redis("the list of adapters") from None

    def _status(self, loaded: LoadedAdapter) -> dict[str, Any]:
        pool = self._pools.by_name.get(loaded.pool)
        loads = pool.scheduler.board.loads().items() if pool else ()
        engine_name = loaded.adapter.engine_name
        return {
            "model": pool.model if pool else "",
            "pool": loaded.pool,
            "source": loaded.adapter.source,
            "digest": loaded.adapter.digest,
            "rank": loaded.rank,
            "bytes": loaded.size,
            "loaded_at": loaded.loaded_at,
            "replicas": sorted(
                name for name, load in loads if engine_name in load.adapters.resident
            ),
        }


async def _body_of(request: Request) -> dict[str, Any]:
    received = b""
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_BODY_BYTES:
            message = f"The body is larger than {MAX_BODY_BYTES:,} bytes. Send a smaller one."
            raise ApiError(BODY_TOO_LARGE, message)
    try:
        body = json.loads(received)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        message = "The body must be a JSON object with 'lora_name'."
        raise ApiError(INVALID_JSON, message)
    return body


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if isinstance(value, str) and value:
        return value
    message = f"{name!r} must be a non-empty string."
    raise ApiError(MISSING_VALUE, message, param=name)
