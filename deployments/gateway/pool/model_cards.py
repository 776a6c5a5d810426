"""Fetches an engine's list of models and description of its API, and caches them for a minute.

These calls use no place of `max_ongoing_requests`. Only one runs at a time, so clients of the
gateway cannot add load to an engine, with a key or without.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import aiohttp

from deployments.gateway.api.load_codes import NO_REPLICA
from deployments.gateway.api.request_codes import INVALID_VALUE
from deployments.gateway.api.request_headers import API_KEY_HEADER
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.pool_parts import Connections
from deployments.wire.engine_pass import EnginePasses

ASK_TIMEOUT_S = 5.0
# Lifetimes of a cached answer, and of a failure.
KEPT_S = 60.0
RETRY_S = 1.0
# In a page of Anthropic's list.
MOST_MODELS = 1000
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
    message = "No engine is ready to describe its API yet. Try again in 5 s."
    return ApiError(NO_REPLICA, message, retry_after=5)


def as_anthropic(cards: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return models in the format of https://docs.anthropic.com/en/api/models-list."""
    created = datetime.fromtimestamp(CREATED, UTC).isoformat().replace("+00:00", "Z")
    return [
        {
            "type": "model",
            "id": card["id"],
            "display_name": card["id"],
            "created_at": created,
            "max_input_tokens": card.get("max_model_len"),
            "max_tokens": card.get("max_model_len"),
            "lifecycle": "active",
        }
        for card in cards
    ]


def anthropic_page(models: Sequence[Mapping[str, Any]], asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of Anthropic's list, for the query `asked`; without `limit`, all that follow
    `after_id` or precede `before_id`. Raises ApiError 400."""
    limit = asked.get("limit")
    most = len(models)
    if limit is not None:
        most = int(limit) if re.fullmatch("[0-9]{1,4}", limit) else 0
        if not 1 <= most <= MOST_MODELS:
            raise _no_page("limit", f"is not a whole number from 1 to {MOST_MODELS:,}")
    places = {model["id"]: place for place, model in enumerate(models)}
    for name in ("after_id", "before_id"):
        if name in asked and asked[name] not in places:
            raise _no_page(name, f"is not the id of a listed model: {asked[name][:100]!r}")
    begin = places[asked["after_id"]] + 1 if "after_id" in asked else 0
    end = places[asked["before_id"]] if "before_id" in asked else len(models)
    found = models[begin:end]
    # backwards, a page is the one next to the model
    page = found[-most:] if "before_id" in asked else found[:most]
    return {
        "data": list(page),
        "has_more": len(page) < len(found),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def _no_page(name: str, why: str) -> ApiError:
    message = f"The query parameter {name!r} {why}. Correct it, or omit it."
    return ApiError(INVALID_VALUE, message, param=name)


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
        API_KEY_HEADER: {"type": "apiKey", "in": "header", "name": API_KEY_HEADER},
    }
    return {
        **schemas[0],
        "info": {"title": "Antefix", "version": schemas[0]["info"]["version"]},
        "paths": {**described, **own},
        "components": {"schemas": components, "securitySchemes": schemes},
        "security": [{"key": []}, {API_KEY_HEADER: []}],
    }
