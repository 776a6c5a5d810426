"""What a gateway tells of its fleet and of requests that it has had; only models compute."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway.inquiries.status import StatusSources, fleet_status
from deployments.gateway.inquiries.traffic_status import minutes_of
from deployments.gateway.intake.api_keys import ApiKeys, KeyHolder
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.pool.model_cards import no_description
from deployments.gateway.record.explanations import (
    EXPLANATION_TTL_S,
    Explanations,
    decisions_of,
    only_failed,
)
from router.redis_client import REDIS_FAILURES


class Inquiries:
    """`holder_of` says whose key a request has, and raises ApiError 401. The API of
    `inference_paths` is the engines'."""

    def __init__(
        self,
        *,
        sources: StatusSources,
        keys: ApiKeys,
        holder_of: Callable[[Request], KeyHolder],
        explanations: Explanations,
        inference_paths: Collection[str],
    ) -> None:
        self._sources = sources
        self._in_force = sources.in_force
        self._pools = sources.pools
        self._keys = keys
        self._holder_of = holder_of
        self._explanations = explanations
        self._inference_paths = inference_paths

    def add_to(self, app: Starlette) -> None:
        for path, answer in (
            ("/v1/models", self.models),
            ("/v1/models/{model:path}", self.model),
            ("/antefix/status", self.status),
            ("/antefix/requests/{request_id}", self.explain),
            ("/antefix/decisions", self.decisions),
            ("/openapi.json", self.openapi),
        ):
            app.add_route(path, answer, methods=["GET"])

    async def models(self, request: Request) -> Response:
        rights = self._holder_of(request).rights
        cards_of = await asyncio.gather(*(pool.models() for pool in self._pools.cards.values()))
        cards = [card for cards in cards_of for card in cards if rights.may_use(card["id"])]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request) -> Response:
        model = request.path_params["model"]
        self._holder_of(request).rights.check_model(model)
        cards = await self._pools.cards[self._pools.of_model(model).name].models()
        return JSONResponse(next(card for card in cards if card["id"] == model))

    async def status(self, request: Request) -> Response:
        """What the fleet does now; with `?minutes=N`, also what was served in that time."""
        holder = self._holder_of(request)
        tenant = None if holder.sees_loads(self._in_force.fleet.gateway) else holder.tenant
        minutes = minutes_of(request.query_params.get("minutes"))
        return JSONResponse(await fleet_status(self._sources, tenant, minutes))

    async def explain(self, request: Request) -> Response:
        """Why a request of this key's tenant, or any for an operator, went where and ended how."""
        holder, request_id = self._holder_of(request), request.path_params["request_id"]
        loads = holder.sees_loads(self._in_force.fleet.gateway)
        try:
            # the page shows an operator everybody's decisions, and leads here
            others = self._keys.tenants if holder.is_operator(self._in_force.fleet.gateway) else ()
            found = await self._explanations.find(holder.tenant, request_id, loads, others)
        except REDIS_FAILURES:
            raise _no_redis() from None
        if found is None:
            message = (
                f"No request {request_id[:128]!r} is known. Ask within {EXPLANATION_TTL_S} s of "
                "its end, by the x-request-id of its answer."
            )
            raise ApiError(404, message, code="unknown_request", param="request_id")
        return JSONResponse(found)

    async def decisions(self, request: Request) -> Response:
        """The last explanations, newest first: this key's tenant's, or all for an operator.

        `?only=failed`: of failed requests.
        """
        holder = self._holder_of(request)
        tenant, operator = holder.tenant, holder.is_operator(self._in_force.fleet.gateway)
        limit = decisions_of(request.query_params.get("limit"))
        failed = only_failed(request.query_params.get("only"))
        try:
            whose = None if operator else tenant
            loads = holder.sees_loads(self._in_force.fleet.gateway)
            found = await self._explanations.latest(whose, limit, loads, failed)
        except REDIS_FAILURES:
            raise _no_redis() from None
        asked_by = json.dumps({"tenant": tenant, "operator": operator}).encode()
        return Response(
            asked_by[:-1] + b', "decisions": ' + found + b"}", media_type="application/json"
        )

    async def openapi(self, request: Request) -> Response:
        for cards in self._pools.cards.values():
            if (described := await cards.openapi(self._inference_paths)) is not None:
                return JSONResponse(described)
        raise no_description()


def _no_redis() -> ApiError:
    message = "Explanations are kept in Redis, which does not answer. Try again later."
    return ApiError(503, message, code="no_redis", retry_after=1)
