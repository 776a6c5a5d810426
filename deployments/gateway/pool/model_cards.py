"""Fetches an engine's list of models and description of its API, and caches them for a minute.

These calls use no place of `max_ongoing_requests`. Only one runs at a time, so clients of the
gateway cannot add load to an engine, with a key or without.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from deployments.gateway.intake.errors import ApiError
from deployments.gateway.pool.parts import Connections
from deployments.gateway.pool.pool import GatewayPool
from deployments.wire.engine_pass import EnginePasses

ASK_TIMEOUT_S = 5.0
# Lifetimes of a cached answer, and of a failure.
KEPT_S = 60.0
RETRY_S = 1.0
# `created` of every model: 2026-11-21, the day of Antefix's first commit. vLLM reports the time of
# the call. A constant is the same at every gateway, after a restart and without Redis.
CREATED = 1_795_219_200
_FAILURES = (aiohttp.ClientError, OSError, ValueError, LookupError)


class ModelCards:
    """The models and the API of one pool."""

    def __init__(self, pool: GatewayPool, connections: Connections) -> None:
        self._pool = pool
        self._session = connections.session
        self._passes = EnginePasses(connections.secret)
        self._models = _CachedAnswer()
        self._schema = _CachedAnswer()

    async def models(self) -> list[dict[str, Any]]:
        """Return the engine's models. Until an engine has answered, they have only names."""
        listed = await self._fetched(self._models, "/v1/models")
        cards = {card["id"]: card for card in (listed or {"data": []})["data"]}
        for name in self._pool.settings.model_names:
            cards.setdefault(name, {"id": name, "object": "model", "owned_by": "antefix"})
        return [
            {k: v for k, v in card.items() if k not in ("root", "permission")}
            | {"created": CREATED}
            for card in cards.values()
        ]

    async def openapi(self) -> dict[str, Any] | None:
        """Return an engine's description of its API; None: no engine has returned it yet."""
        return await self._fetched(self._schema, "/openapi.json")

    async def _fetched(self, cached: _CachedAnswer, path: str) -> dict[str, Any] | None:
        """Return the last answer of an engine, fetched again once it is too old.

        If the fetch fails, the old answer stays; None: there is none yet.
        """
        async with cached.lock:
            if time.monotonic() >= cached.until:
                try:
                    cached.answer, good_s = await self._ask(path), KEPT_S
                except _FAILURES:
                    good_s = RETRY_S
                cached.until = time.monotonic() + good_s
        return cached.answer

    async def _ask(self, path: str) -> dict[str, Any]:
        board = self._pool.scheduler.board
        loads = list((board.loads() or board.last_known()).values())
        awake = [load for load in loads if not load.asleep]
        url = random.choice(awake or loads).url
        answer = await self._session.get(
            url + path,
            headers=self._passes.headers(url, path=path),
            timeout=aiohttp.ClientTimeout(total=ASK_TIMEOUT_S),
        )
        async with answer:
            answer.raise_for_status()
            body: dict[str, Any] = await answer.json()
            return body


class _CachedAnswer:
    """A cached answer, valid `until` a time of the monotonic clock. `lock`: held while fetching."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.answer: dict[str, Any] | None = None
        self.until = 0.0


def no_description() -> ApiError:
    message = "No engine has described its API yet. Try again later."
    return ApiError(503, message, code="no_replica", retry_after=5)


def as_anthropic(cards: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return models in the format of https://docs.anthropic.com/en/api/models-list."""
    created = datetime.fromtimestamp(CREATED, UTC).isoformat().replace("+00:00", "Z")
    return [
        {"type": "model", "id": card["id"], "display_name": card["id"], "created_at": created}
        for card in cards
    ]


def merged_openapi(
    schemas: Sequence[Mapping[str, Any]], paths: Iterable[str], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return one description of the gateway's API: engines' `paths`, and the gateway's `own`.

    `schemas`: the engines' descriptions, at least one.
    """
    served = {*paths}
    described: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for schema in reversed(schemas):  # the first pool takes precedence
        paths_of_pool = schema["paths"].items()
        described |= {path: operations for path, operations in paths_of_pool if path in served}
        components |= (schema.get("components") or {}).get("schemas") or {}
    schemes = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        **schemas[0],
        "info": {"title": "Antefix", "version": schemas[0]["info"]["version"]},
        "paths": {**described, **own},
        "components": {"schemas": components, "securitySchemes": schemes},
        "security": [{"key": []}, {"x-api-key": []}],
    }
