"""The list of LoRA adapters that were loaded while the fleet serves, shared by all gateways.

key                 value                                              lifetime
adapters            hash: an adapter's name -> `LoadedAdapter`, JSON,  permanent
                    signed
adapters_version    a number, which each change increments             permanent

A gateway reads the version once a second, and at once for an unknown name. So every gateway serves
an adapter as soon as it is loaded. After a change or removal, a gateway serves the old weights for
up to a second, or longer without Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import cast

import msgspec

from common.loops import forever
from deployments.fleet.fleet import Fleet
from deployments.fleet.settings.fleet_rules import MODEL_NAME
from deployments.gateway.models.model_routes import WeightedPools
from deployments.wire.lora_adapter import Adapter
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.signature import Signer, opened, signed

logger = logging.getLogger("ray.serve")

PERIOD_S = 1.0
# The limit of a fleet, because GET /v1/models lists all of them.
MOST_ADAPTERS = 1000


class LoadedAdapter(msgspec.Struct, frozen=True):
    """A loaded adapter of a pool's model. `size`: bytes of its files. `loaded_at`: Unix time."""

    adapter: Adapter
    pool: str
    rank: int
    size: int
    loaded_at: float


_loaded = msgspec.json.Decoder(LoadedAdapter).decode


def is_usable(name: str) -> bool:
    """Return whether an adapter may have this name. The rule is that of models."""
    return MODEL_NAME.fullmatch(name) is not None


class Adapters:
    """One gateway's view of the adapters.

    `redis` has `decode_responses`; `fleet` is `FleetBase.redis_name`. `by_name`: the adapters of
    the fleet's pools. Models of the fleet file take precedence over adapters of the same name.
    `not_loaded`: the names of models that lead only to adapters that are not loaded, and these.
    """

    def __init__(self, redis: AsyncRedis, fleet: str, signer: Signer) -> None:
        self._redis = redis
        self._key = redis_keys.key(fleet, "adapters")
        self._version_key = redis_keys.key(fleet, "adapters_version")
        self._signer = signer
        self._fleet: Fleet | None = None
        self._version: str | None = "none is read yet"
        self._all: Mapping[str, LoadedAdapter] = {}
        self._changed = asyncio.Event()
        self.by_name: Mapping[str, LoadedAdapter] = {}
        self.not_loaded: Mapping[str, Sequence[str]] = {}
        self._routes: Mapping[str, WeightedPools] = {}
        self._taken: frozenset[str] = frozenset()

    @property
    def is_used(self) -> bool:
        """Whether a pool of the fleet accepts adapters while it serves."""
        return self._fleet is not None and any(
            pool.adapters is not None for pool in self._fleet.pools.values()
        )

    @property
    def routes(self) -> Mapping[str, WeightedPools]:
        """The route of each adapter's name, and of each model that leads to adapters."""
        return self._routes

    def is_taken(self, name: str) -> bool:
        """Return whether no adapter can have this name, because a model has it."""
        return name in self._taken

    def change(self, fleet: Fleet) -> None:
        """Use this fleet file from now on."""
        self._fleet = fleet
        self._apply()
        self._changed.set()

    def engine_adapter(self, name: str) -> Adapter | None:
        """Return the adapter of this name; None if the name is a model's."""
        found = self.by_name.get(name)
        return found.adapter if found is not None else None

    async def run(self) -> None:
        """Follow the changes of other gateways until cancelled."""
        await forever(
            "adapters",
            self._follow,
            fails="failed to read the adapters; keeping the last ones",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def refresh(self) -> None:
        """Read the adapters if they have changed. Raises one of REDIS_FAILURES."""
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            [version] = await cast(
                Awaitable[list[str | None]], self._redis.mget([self._version_key])
            )
            if version == self._version:
                return
            if version is None and self._all:  # Redis has lost its data
                await self._write(*self._all.values())
                return
            found = await cast(Awaitable[dict[str, str]], self._redis.hgetall(self._key))
        self._all = {
            name: loaded
            for name, text in found.items()
            if (loaded := self._opened(text)) is not None and loaded.adapter.name == name
        }
        self._version = version
        self._apply()

    async def put(self, loaded: LoadedAdapter) -> None:
        """Add or replace an adapter at all gateways. Raises one of REDIS_FAILURES."""
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            await self._write(loaded)
        await self.refresh()

    async def remove(self, name: str) -> None:
        """Remove an adapter from all gateways. Raises one of REDIS_FAILURES."""
        async with (
            asyncio.timeout(REDIS_TIMEOUT_S),
            self._redis.pipeline(transaction=True) as pipe,
        ):
            pipe.hdel(self._key, name)
            pipe.incr(self._version_key)
            await pipe.execute()
        await self.refresh()

    async def _write(self, *adapters: LoadedAdapter) -> None:
        encoded = {each.adapter.name: msgspec.json.encode(each).decode() for each in adapters}
        async with self._redis.pipeline(transaction=True) as pipe:
            for name, text in encoded.items():
                pipe.hset(self._key, name, signed(self._signer, self._key, text))
            pipe.incr(self._version_key)
            await pipe.execute()

    async def _follow(self) -> None:
        self._changed.clear()
        if self.is_used:
            await self.refresh()
        try:
            async with asyncio.timeout(PERIOD_S if self.is_used else None):
                await self._changed.wait()
        except TimeoutError:
            return

    def _opened(self, text: str) -> LoadedAdapter | None:
        found = opened(self._signer, self._key, text)
        try:
            return None if found is None else _loaded(found)
        except (msgspec.MsgspecError, ValueError):  # written by hand, or by another release
            return None

    def _apply(self) -> None:
        if self._fleet is None:
            return
        pools, models = self._fleet.pools, self._fleet.models
        served = {name: pool for pool, of in pools.items() for name in of.model_names}
        # a model may have the name of one of its adapters, which clients used before
        routed = {name for name, route in models.items() if name not in route.adapters}
        aliases = (alias for route in models.values() for alias in route.aliases)
        self._taken = frozenset({*served, *routed, *aliases})
        self.by_name = {
            name: loaded
            for name, loaded in self._all.items()
            if name not in self._taken
            and loaded.pool in pools
            and pools[loaded.pool].adapters is not None
        }
        pool_of = {name: loaded.pool for name, loaded in self.by_name.items()}
        routes = {
            name: WeightedPools(name, {pool: 1.0}, pools[pool].session_header)
            for name, pool in pool_of.items()
        }
        pool_of, self.not_loaded = {**pool_of, **served}, {}
        for name, model in models.items():
            weights = {each: weight for each, weight in model.adapters.items() if each in pool_of}
            if any(weights.values()):
                header = pools[pool_of[next(iter(weights))]].session_header
                route = WeightedPools(name, weights, header, adapter_pools=pool_of)
                routes |= dict.fromkeys((name, *model.aliases), route)
            elif model.adapters:
                absent = {each: list(model.adapters) for each in (name, *model.aliases)}
                self.not_loaded = {**self.not_loaded, **absent}
        self._routes = routes
