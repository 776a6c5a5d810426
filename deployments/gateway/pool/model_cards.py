"""What a pool's engines say of themselves: their models, and their API.

It is asked of an engine beside its users, taking no place of theirs, by one question at a time, and
kept for a while; who asks a gateway, with a key or without, costs an engine nothing more.
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
# How long an answer is good, and how long the lack of one.
KEPT_S = 60.0
RETRY_S = 1.0
# `created` of every model: 2026-11-21, the day of Antefix's first commit. vLLM reports the time of
# the question. A constant is the same at every gateway, after a restart and without Redis.
CREATED = 1_795_219_200
_FAILURES = (aiohttp.ClientError, OSError, ValueError, LookupError)


class ModelCards:
    """Of one pool."""

    def __init__(self, pool: GatewayPool, connections: Connections) -> None:
        self._pool = pool
        self._session = connections.session
        self._passes = EnginePasses(connections.secret)
        self._models = _Kept()
        self._schema = _Kept()

    async def models(self) -> list[dict[str, Any]]:
        """What an engine says of its models; the names alone while none has."""
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
        """An engine's own description of its API; None: no engine has returned it yet."""
        return await self._fetched(self._schema, "/openapi.json")

    async def _fetched(self, kept: _Kept, path: str) -> dict[str, Any] | None:
        """What an engine answered last, lately where one answers at all."""
        async with kept.lock:
            if time.monotonic() >= kept.until:
                try:
                    kept.answer, good_s = await self._ask(path), KEPT_S
                except _FAILURES:
                    good_s = RETRY_S
                kept.until = time.monotonic() + good_s
        return kept.answer

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


class _Kept:
    """An answer, good until then by the monotonic clock, and who asks for the next."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.answer: dict[str, Any] | None = None
        self.until = 0.0


def no_description() -> ApiError:
    message = "No engine has described its API yet. Try again later."
    return ApiError(503, message, code="no_replica", retry_after=5)


def as_anthropic(cards: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Models as https://docs.anthropic.com/en/api/models-list has them."""
    created = datetime.fromtimestamp(CREATED, UTC).isoformat().replace("+00:00", "Z")
    return [
        {"type": "model", "id": card["id"], "display_name": card["id"], "created_at": created}
        for card in cards
    ]


def merged_openapi(
    schemas: Sequence[Mapping[str, Any]], paths: Iterable[str], own: Mapping[str, Any]
) -> dict[str, Any]:
    """One description for what a gateway serves: `paths` as engines describe them in `schemas`, of
    which one is needed, and the gateway's `own`."""
    served = {*paths}
    described: dict[str, Any] = {}
    components: dict[str, Any] = {}
    for schema in reversed(schemas):  # the first pool's win
        described |= {path: of for path, of in schema["paths"].items() if path in served}
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
