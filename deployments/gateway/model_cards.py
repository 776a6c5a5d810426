"""What a pool's engines say of themselves: their models, and their API."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import aiohttp

from deployments.gateway.errors import ApiError
from deployments.gateway.pool import GatewayPool
from deployments.gateway.transport import ReplicaFailed, Reservation

# Asking an engine about itself must not wait behind its users.
ASK_TIMEOUT_S = 5.0


class ModelCards:
    def __init__(self, pool: GatewayPool) -> None:
        self._pool = pool
        self._started = int(time.time())
        self._openapi: dict[str, Any] | None = None

    async def models(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        """What an engine says of its models; the names alone while none answers."""
        try:
            cards: list[dict[str, Any]] = (await self._ask(session, "/v1/models"))["data"]
        except (ApiError, ReplicaFailed, aiohttp.ClientError, TimeoutError):
            cards = [
                {"id": name, "object": "model", "created": self._started, "owned_by": "antefix"}
                for name in self._pool.settings.model_names
            ]
        return [
            {k: v for k, v in card.items() if k not in ("root", "permission")} for card in cards
        ]

    async def openapi(self, session: aiohttp.ClientSession, paths: Iterable[str]) -> dict[str, Any]:
        """An engine's own description of `paths`, with our way of authorising."""
        if self._openapi is None:
            schema = await self._ask(session, "/openapi.json")
            schema["info"] = {"title": "Antefix", "version": schema["info"]["version"]}
            schema["paths"] = {p: v for p, v in schema["paths"].items() if p in {*paths}}
            schema["paths"] |= _OWN_PATHS
            schemes = schema.setdefault("components", {}).setdefault("securitySchemes", {})
            schemes["key"] = {"type": "http", "scheme": "bearer"}
            schema["security"] = [{"key": []}]
            self._openapi = schema
        return self._openapi

    async def _ask(self, session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)

        async def send(place: Reservation) -> aiohttp.ClientResponse:
            return await session.get(place.url + path, headers=place.headers, timeout=timeout)

        async with (
            asyncio.timeout(ASK_TIMEOUT_S),
            self._pool.transport.exchange(send) as (_, answer),
        ):
            answer.raise_for_status()
            body: dict[str, Any] = await answer.json()
            return body


def _own(summary: str) -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": {"200": {"description": "OK"}}}}


_OWN_PATHS = {
    "/v1/models": _own("The models this fleet serves"),
    "/v1/models/{model}": _own("One model"),
    "/health/live": _own("Is this gateway running"),
    "/health/ready": _own("Has every pool a running replica"),
    "/antefix/status": _own("Replicas, queues, KV use and predicted TTFT"),
    "/antefix/requests/{request_id}": _own("Why a request went where it went"),
    "/antefix/decisions": _own("The same of the last hundred requests, newest first"),
    "/antefix/": _own("A page for people: pools, replicas and the last decisions"),
}
