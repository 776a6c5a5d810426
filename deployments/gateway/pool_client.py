"""One pool of engines as a gateway sees it: where to send a request, what it can do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from autoscaling.slo import PriorityClass
from deployments.fleet.fleet import Pool
from deployments.gateway.entrance import Entrance, Visit
from deployments.gateway.errors import ApiError
from deployments.gateway.pool_router import PoolRouter, policy_of
from deployments.gateway.relay import EngineRequest
from deployments.gateway.transport import ReplicaFailed, Slot, Transport
from deployments.gateway.wishes import wishes_of
from observability.metrics import AdmissionMetrics

# Asking an engine about itself must not wait behind its users.
ASK_TIMEOUT_S = 5.0


class PoolClient:
    """`router` and `entrance` are public: `status` reads them. `overflow`: see `Entrance`."""

    def __init__(
        self,
        name: str,
        pool: Pool,
        transport: Transport,
        router: PoolRouter,
        overflow: PoolClient | None,
        metrics: AdmissionMetrics,
    ) -> None:
        self.name = name
        self.pool = pool
        self.router = router
        self.entrance: Entrance = Entrance(
            pool, router, transport, overflow.entrance if overflow else None, metrics
        )
        self._transport = transport
        self._started = int(time.time())
        self._openapi: dict[str, Any] | None = None

    async def run(self) -> None:
        """Keep what is known of the pool current until cancelled."""
        await asyncio.gather(self.router.run(), self.entrance.run())

    async def visit(
        self,
        request: EngineRequest,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        right: PriorityClass,
    ) -> Visit:
        """A request that has come to the entrance.

        Raises ApiError 400 for a header that asks for what does not exist, and 403 for a class
        beyond the key's `right`.
        """
        policy, wishes = policy_of(headers), wishes_of(headers, fields, right)
        request.record.priority = wishes.priority
        prompt = await self.router.read(request, fields, headers)
        return Visit(request, fields, headers, prompt, policy, wishes)

    def refresh_metrics(self, states: Mapping[str, int], target: int) -> None:
        """Bring the gauges up to date; replicas by state, and how many there should be."""
        self.router.refresh_metrics(states, target)
        self.entrance.refresh_metrics()

    async def model_cards(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        """What an engine says of its models; the names alone while none answers."""
        try:
            cards: list[dict[str, Any]] = (await self._ask(session, "/v1/models"))["data"]
        except (ApiError, ReplicaFailed, aiohttp.ClientError, TimeoutError):
            cards = [
                {"id": name, "object": "model", "created": self._started, "owned_by": "antefix"}
                for name in self.pool.model_names
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

        async def send(slot: Slot) -> aiohttp.ClientResponse:
            return await session.get(slot.url + path, headers=slot.headers, timeout=timeout)

        async with asyncio.timeout(ASK_TIMEOUT_S), self._transport.exchange(send) as (_, answer):
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
