"""Chooses the pool, or the adapter, of a request for a model that has several: its conversation's.

key                    value                        lifetime
conversation:<hash>    a pool's or adapter's name   KEPT_S after its last request

Weights choose the pool of a new conversation (`deployments.gateway.models.weighted_pools`), so all
gateways choose the same one without Redis. Redis stores the choice, so a conversation keeps its
pool when weights change. If Redis does not answer in time, weights choose again. The hashes are
keyed with the fleet's secret, so Redis access does not suffice to test a prompt against them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from deployments.fleet.fleet import Fleet
from deployments.gateway.models.conversations import conversation_of
from deployments.gateway.models.weighted_pools import chosen
from observability.traces.request_record import RequestRecord, RoutedBy
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

KEPT_S = 3600
# The weight of pools that get no new conversations, relative to one with weight 1.
_NO_NEW = 1e-12


@dataclass(frozen=True)
class WeightedPools:
    """A model's pools or adapters, and their weights.

    `name`: the model's name, even if a request used an alias. `weights`: by the names of the pools,
    or of the adapters if there are `adapter_pools`; at least one is above 0. `session_header`: the
    header that names conversations. `by_price`: pools with a weight above 0 compete for each
    request. `adapter_pools`: the pool of each adapter.
    """

    name: str
    weights: Mapping[str, float]
    session_header: str
    by_price: bool = False
    adapter_pools: Mapping[str, str] = field(default_factory=dict)

    @property
    def competing(self) -> list[str]:
        """The pools that compete for a request; none if weights decide."""
        wanted = [pool for pool, weight in self.weights.items() if weight > 0]
        return wanted if self.by_price and len(wanted) > 1 else []

    @property
    def pools(self) -> list[str]:
        """The names of all pools, that of the greatest weight first."""
        ranked = sorted(self.weights, key=self.weights.__getitem__, reverse=True)
        return list(dict.fromkeys(map(self.pool_name, ranked)))

    def pool_name(self, name: str) -> str:
        """Return the pool of one of `weights`."""
        return self.adapter_pools.get(name, name)

    @property
    def only(self) -> str | None:
        """The pool or adapter that serves all requests; None if there are several."""
        wanted = [pool for pool, weight in self.weights.items() if weight > 0]
        return wanted[0] if len(wanted) == 1 else None

    def with_canary(self, canary: str, share: float) -> WeightedPools:
        """Return the route with a share, from 0 to 1, of new conversations for the canary.

        Even with a share of 1, conversations of the others stay there. An adapter that is not
        loaded gets none.
        """
        if self.adapter_pools and canary not in self.adapter_pools:
            return self
        rest = max(1 - share, _NO_NEW)
        weights = {name: weight * rest for name, weight in self.weights.items()}
        total = sum(self.weights.values())
        return replace(self, weights={**weights, canary: share * total})

    def choose(self, conversation: KnownConversation | None) -> tuple[str, RoutedBy]:
        """Return the name of the pool or adapter, and why it was chosen.

        `conversation` None: the request belongs to none.
        """
        if (only := self.only) is not None:
            return only, "only"
        if competing := self.competing:
            return competing[0], ""
        if conversation is None:
            return chosen(self.weights, os.urandom(16)), "weight"
        if conversation.of is not None and self.weights.get(conversation.of, 0) > 0:
            return conversation.of, "conversation"
        return chosen(self.weights, conversation.name), "weight"


def routes_of(fleet: Fleet) -> dict[str, WeightedPools]:
    """Return a fleet's routes to pools, by every name that clients may use."""
    routes = {
        name: WeightedPools(name, {pool: 1.0}, settings.session_header)
        for pool, settings in fleet.pools.items()
        for name in settings.model_names
    }
    for name, model in fleet.models.items():
        if model.adapters:  # `Adapters` has its route
            routes.pop(name, None)
            continue
        first = fleet.pools[next(iter(model.pools))]
        by_price = model.select == "price"
        route = WeightedPools(name, model.pools, first.session_header, by_price)
        routes |= dict.fromkeys((name, *model.aliases), route)
    return routes


@dataclass(frozen=True)
class KnownConversation:
    """A conversation. `name`: 16 bytes. `of`: its pool or adapter; None: unknown."""

    name: bytes
    of: str | None


class Conversations:
    """One gateway's access to conversations.

    `redis` has `decode_responses`; `fleet` is `FleetBase.redis_name`.
    """

    def __init__(self, redis: AsyncRedis, fleet: str, secret: str) -> None:
        self._redis = redis
        self._fleet = fleet
        self._secret = blake2b(secret.encode(), person=b"afx conversation").digest()
        self._writing: set[asyncio.Task[None]] = set()

    async def of(
        self,
        route: WeightedPools,
        record: RequestRecord,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        budget_s: float,
    ) -> KnownConversation | None:
        """Return the conversation of a request; None if its pool does not depend on one.

        Waits up to `budget_s` seconds for Redis. Never raises.
        """
        if route.only is not None or route.competing:
            return None
        name = self.name_of(route.session_header, record, fields, headers)
        if name is None:
            return None
        try:
            async with asyncio.timeout(budget_s):
                # unlike GET, MGET returns None for a value of another type
                [found] = await self._redis.mget([self._key(route, name)])
        except REDIS_FAILURES:
            found = None
        return KnownConversation(name, found if isinstance(found, str) else None)

    def name_of(
        self,
        session_header: str,
        record: RequestRecord,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
    ) -> bytes | None:
        """Return the name of a request's conversation, 16 bytes; None if it belongs to none."""
        session = headers.get(session_header)
        return conversation_of(
            self._secret, record.facts.path, record.facts.tenant, fields, session
        )

    def keep(self, route: WeightedPools, conversation: KnownConversation | None, of: str) -> None:
        """Store the pool or adapter of a conversation, in the background."""
        if conversation is None:
            return
        writing = asyncio.create_task(self._write(self._key(route, conversation.name), of))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _write(self, key: str, of: str) -> None:
        try:
            await self._redis.set(key, of, ex=KEPT_S)
        except REDIS_FAILURES as error:
            logger.debug("failed to store the pool of a conversation: %s", type(error).__name__)

    def _key(self, route: WeightedPools, name: bytes) -> str:
        named = blake2b(
            route.name.encode(), digest_size=16, key=self._secret, salt=name
        ).hexdigest()
        return redis_keys.key(self._fleet, f"conversation:{named}")
