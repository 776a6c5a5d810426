"""Which pool serves a request, where a name leads to several: the one that its conversation is in.

key                                    value            lifetime
conversation:<hex of its name>         a pool's name    KEPT_S after its last request

Weights choose for new conversations (`router.model_routes`), so that all gateways choose alike
without Redis. Redis keeps what was chosen: when weights change, a conversation stays where it is.
Without an answer in time it goes where the weights lead. The names are hashes keyed with the
fleet's secret: no reader of Redis can test a prompt against them.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from deployments.fleet.fleet import Fleet
from deployments.gateway.models.conversations import conversation_of
from observability.request_record import RequestRecord, RoutedBy
from router import redis_keys
from router.model_routes import chosen
from router.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

KEPT_S = 3600
# The weight of pools that get no new conversation, beside one of 1.
_NONE_NEW = 1e-12


@dataclass(frozen=True)
class WeightedPools:
    """`name`: of the model, however a request called it. `weights`: of its pools, by name; one is
    above 0. `session_header`: names conversations. `by_price`: pools of a weight above 0 compete
    for each request."""

    name: str
    weights: Mapping[str, float]
    session_header: str
    by_price: bool = False

    @property
    def competing(self) -> list[str]:
        """The pools that compete for a request; none where weights decide."""
        wanted = [pool for pool, weight in self.weights.items() if weight > 0]
        return wanted if self.by_price and len(wanted) > 1 else []

    @property
    def only(self) -> str | None:
        """The pool that serves all requests; None where several do."""
        wanted = [pool for pool, weight in self.weights.items() if weight > 0]
        return wanted[0] if len(wanted) == 1 else None

    def with_canary(self, pool: str, share: float) -> WeightedPools:
        """The same route, of whose new conversations this pool gets a share, from 0 to 1. With all
        of them, conversations of the others still stay where they are."""
        rest = max(1 - share, _NONE_NEW)
        weights = {name: weight * rest for name, weight in self.weights.items()}
        total = sum(self.weights.values())
        return replace(self, weights={**weights, pool: share * total})

    def pool_of(self, conversation: KnownConversation | None) -> tuple[str, RoutedBy]:
        """Return the name of a pool, and why it was chosen. None: a request that is alone."""
        if (only := self.only) is not None:
            return only, "only"
        if competing := self.competing:
            return competing[0], ""
        if conversation is None:
            return chosen(self.weights, os.urandom(16)), "weight"
        if conversation.pool is not None and self.weights.get(conversation.pool, 0) > 0:
            return conversation.pool, "conversation"
        return chosen(self.weights, conversation.name), "weight"


def routes_of(fleet: Fleet) -> dict[str, WeightedPools]:
    """The routes of a fleet by each name that clients may ask for."""
    routes = {
        name: WeightedPools(name, {pool: 1.0}, settings.session_header)
        for pool, settings in fleet.pools.items()
        for name in settings.model_names
    }
    for name, of in fleet.models.items():
        first = fleet.pools[next(iter(of.pools))]
        by_price = of.select == "price"
        route = WeightedPools(name, of.pools, first.session_header, by_price)
        routes |= dict.fromkeys((name, *of.aliases), route)
    return routes


@dataclass(frozen=True)
class KnownConversation:
    """`name`: 16 bytes. `pool`: the name of the pool that it is in; None: not known."""

    name: bytes
    pool: str | None


class Conversations:
    """Of one gateway. `redis` decodes; `fleet`: as `FleetBase.redis_name`."""

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
        """Return the conversation of a request; None where its pool does not depend on it. Waits
        `budget_s` for Redis at most; never raises."""
        if route.only is not None or route.competing:
            return None
        name = self.name_of(route.session_header, record, fields, headers)
        if name is None:
            return None
        try:
            async with asyncio.timeout(budget_s):
                [found] = await self._redis.mget([self._key(route, name)])  # of another type: none
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
        """Return the name of a request's conversation, 16 bytes; None: it is alone."""
        session = headers.get(session_header)
        return conversation_of(self._secret, record.path, record.tenant, fields, session)

    def keep(self, route: WeightedPools, conversation: KnownConversation | None, pool: str) -> None:
        """The conversation is in this pool. No request waits for that."""
        if conversation is None:
            return
        writing = asyncio.create_task(self._write(self._key(route, conversation.name), pool))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _write(self, key: str, pool: str) -> None:
        try:
            await self._redis.set(key, pool, ex=KEPT_S)
        except REDIS_FAILURES as error:
            logger.debug("the pool of a conversation is not kept: %s", type(error).__name__)

    def _key(self, route: WeightedPools, name: bytes) -> str:
        named = blake2b(
            route.name.encode(), digest_size=16, key=self._secret, salt=name
        ).hexdigest()
        return redis_keys.key(self._fleet, f"conversation:{named}")
