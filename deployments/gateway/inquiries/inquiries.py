"""Endpoints that report models, status and past requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway.api import endpoints
from deployments.gateway.api.limits import EXPLANATION_TTL_S, UNDER_WAY_S
from deployments.gateway.api.request_codes import UNKNOWN_REQUEST
from deployments.gateway.inquiries.status import StatusSources, fleet_status
from deployments.gateway.inquiries.traffic_status import minutes_of
from deployments.gateway.intake.api_errors import ApiError, no_redis, shape_of
from deployments.gateway.intake.api_keys import ApiKeys, KeyHolder
from deployments.gateway.pool.model_cards import (
    anthropic_page,
    as_anthropic,
    merged_openapi,
    no_description,
)
from deployments.gateway.record.explanations import (
    Explanations,
    decisions_of,
    only_failed,
)
from deployments.wire.inference_paths import INFERENCE_PATHS
from router.redis.redis_client import REDIS_FAILURES


class Inquiries:
    """The endpoints.

    `holder_of` returns the holder of a request's key, and raises ApiError 401. `own_paths`: the
    gateway's part of /openapi.json.
    """

    def __init__(
        self,
        *,
        sources: StatusSources,
        keys: ApiKeys,
        holder_of: Callable[[Request], KeyHolder],
        explanations: Explanations,
        own_paths: Mapping[str, Any],
    ) -> None:
        self._sources = sources
        self._in_force = sources.in_force
        self._pools = sources.pools
        self._keys = keys
        self._holder_of = holder_of
        self._explanations = explanations
        self._own_paths = own_paths

    def add_to(self, app: Starlette) -> None:
        endpoints.MODELS.add_to(app, self.models)
        endpoints.MODEL.add_to(app, self.model)
        endpoints.STATUS.add_to(app, self.status)
        endpoints.EXPLANATION.add_to(app, self.explain)
        endpoints.DECISIONS.add_to(app, self.decisions)
        endpoints.OPENAPI.add_to(app, self.openapi)

    async def models(self, request: Request) -> Response:
        rights = self._holder_of(request).rights
        cards_of = await asyncio.gather(*(pool.models() for pool in self._pools.cards.values()))
        # engines also list their internal names of adapters, which clients cannot use
        known = self._pools.models
        own = {card["id"]: card for cards in cards_of for card in cards if card["id"] in known}
        routed = [self._routed(own, name) for name in known if name not in own]
        cards = [
            card for card in (*own.values(), *routed) if self._pools.may_use(rights, card["id"])
        ]
        if shape_of(request.url.path, request.headers) != "anthropic":
            return JSONResponse({"object": "list", "data": cards})
        return JSONResponse(anthropic_page(as_anthropic(cards), request.query_params))

    async def model(self, request: Request) -> Response:
        model = request.path_params["model"]
        if not model.strip("/") or model.endswith("/"):
            raise HTTPException(404)  # which redirects to the path without the slash
        await self._pools.look_for(model)
        route = self._pools.check(self._holder_of(request).rights, model)
        cards = await self._pools.cards[route.pools[0]].models()
        own = {card["id"]: card for card in cards}
        card = own.get(model) or self._routed(own, model)
        if shape_of(request.url.path, request.headers) == "anthropic":
            (card,) = as_anthropic([card])
        return JSONResponse(card)

    def _routed(self, own: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return a card for a name that no engine lists: the card of the pool with most weight."""
        pool = self._pools.by_name[self._pools.models[name].pools[0]]
        card = {**own.get(pool.model, {}), "id": name}
        if (loaded := self._pools.adapters.by_name.get(name)) is not None:
            card |= {"created": int(loaded.loaded_at), "parent": pool.model}
            card["root"] = loaded.adapter.source
        return card

    async def status(self, request: Request) -> Response:
        """Return the fleet's status; with `?minutes=N`, also the traffic of the last N minutes."""
        holder = self._holder_of(request)
        tenant = None if holder.sees_loads(self._in_force.fleet.gateway) else holder.tenant
        minutes = minutes_of(request.query_params.get("minutes"))
        return JSONResponse(await fleet_status(self._sources, tenant, minutes))

    async def explain(self, request: Request) -> Response:
        """Return the explanation of a request: its placement and its end.

        Tenants see their own requests only, operators all.
        """
        holder, request_id = self._holder_of(request), request.path_params["request_id"]
        loads = holder.sees_loads(self._in_force.fleet.gateway)
        try:
            # the page shows operators the decisions of all tenants, and links here
            others = self._keys.tenants if holder.is_operator(self._in_force.fleet.gateway) else ()
            found = await self._explanations.find(holder.tenant, request_id, loads, others)
        except REDIS_FAILURES:
            raise no_redis("explanations") from None
        if found is None:
            message = (
                f"No explanation of the request {request_id[:128]!r} is stored. Use the"
                " x-request-id of a request of your tenant that ended within the last"
                f" {EXPLANATION_TTL_S} s, or that has been running for {UNDER_WAY_S:g} s. Under"
                " high load, the gateway stores only a sample of the explanations."
            )
            raise ApiError(UNKNOWN_REQUEST, message, param="request_id")
        return JSONResponse(found)

    async def decisions(self, request: Request) -> Response:
        """Return the last explanations, newest first: of the key's tenant, or all for operators.

        `?only=failed`: only those of failed requests.
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
            raise no_redis("explanations") from None
        asked_by = json.dumps({"tenant": tenant, "operator": operator}).encode()
        return Response(
            asked_by[:-1] + b', "decisions": ' + found + b"}", media_type="application/json"
        )

    async def openapi(self, request: Request) -> Response:
        fetched = await asyncio.gather(*(cards.openapi() for cards in self._pools.cards.values()))
        schemas = [schema for schema in fetched if schema is not None]
        if not schemas:
            raise no_description()
        return JSONResponse(merged_openapi(schemas, INFERENCE_PATHS, self._own_paths))
