"""The pools of a fleet in one gateway. New settings add, change and remove pools."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from common.loops import Loops
from deployments.fleet.fleet import Fleet
from deployments.gateway.api.request_codes import MODEL_NOT_FOUND
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.keys_file import KeyRights
from deployments.gateway.models.model_routes import WeightedPools, routes_of
from deployments.gateway.models.shared_adapters import Adapters
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.model_cards import ModelCards
from deployments.gateway.pool.pool_parts import Connections, parts_of
from deployments.gateway.pool.serve_controller import AllReplicas, Question
from observability.metrics.families import Families
from observability.metrics.metrics import AdmissionMetrics, RoutingMetrics
from router.redis.redis_client import REDIS_FAILURES

LOOK_PERIOD_S = 0.25
_NOT_STARTING = ("RUNNING", "STOPPING", "PENDING_MIGRATION")


class Pools:
    """The pools, and the names of models that lead to them.

    Callers may read `by_name` and `cards`, which are replaced and never changed. `transport_of`
    returns the transport to a pool's replicas, by the pool's name. `replicas`: Ray Serve's replicas
    of all pools. `adapters` are served in addition to the fleet file's models.
    """

    def __init__(
        self,
        connections: Connections,
        transport_of: Callable[[str], Transport],
        replicas: Question[AllReplicas],
        metrics: Families,
        loops: Loops,
        adapters: Adapters,
    ) -> None:
        self.by_name: Mapping[str, GatewayPool] = {}
        self.cards: Mapping[str, ModelCards] = {}
        self._routes: Mapping[str, WeightedPools] = {}
        self._connections = connections
        self._transport_of = transport_of
        self._replicas = replicas
        self._metrics = metrics
        self._loops = loops
        self.adapters = adapters
        self._running: dict[GatewayPool, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def change(self, fleet: Fleet) -> None:
        """Serve the fleet's pools from now on. Open requests end in their pools."""
        before = self.by_name
        pools = {name: before.get(name) or self._made(fleet, name) for name in fleet.pools}
        for name, pool in pools.items():
            overflow, prefill = fleet.pools[name].overflow, fleet.pools[name].prefill
            pool.change(
                fleet,
                pools[overflow.to] if overflow else None,
                pools[prefill.pool] if prefill else None,
            )
        self.by_name = pools
        self.cards = {
            name: self.cards[name] if name in before else ModelCards(pool, self._connections)
            for name, pool in pools.items()
        }
        self._routes = routes_of(fleet)
        for pool in pools.values():
            if pool not in self._running:
                self._running[pool] = self._loops.start("pool", pool.run())
        for name in before.keys() - pools.keys():
            leaving = asyncio.create_task(self._end(before[name]))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    @property
    def models(self) -> Mapping[str, WeightedPools]:
        """The route of each name that clients may use."""
        return {**self.adapters.routes, **self._routes}

    async def look_for(self, model: str) -> None:
        """Read the adapters that other gateways have loaded, if no route has this name."""
        if self.may_be_an_adapter(model) and model not in self.adapters.routes:
            with contextlib.suppress(*REDIS_FAILURES):
                await self.adapters.refresh()

    def may_be_an_adapter(self, model: str) -> bool:
        """Return whether the name may be an adapter's: no model has it, and adapters are in use."""
        return model not in self._routes and self.adapters.is_used

    def route_of(self, model: str, rights: KeyRights) -> WeightedPools:
        """Return the route of a model or adapter. Raises ApiError 404, which names those that the
        key may use."""
        if route := self._routes.get(model) or self.adapters.routes.get(model):
            return route
        usable = [name for name in self.models if self.may_use(rights, name)]
        advice = f"Use one of: {', '.join(sorted(usable))}."
        if not usable:
            advice = (
                "This key is not allowed to use any model. Ask the operators for a key that has "
                "access to one."
            )
        shown = model if len(model) <= 100 else model[:100] + "..."
        message = f"The model {shown!r} does not exist. {advice}"
        absent = self.adapters.not_loaded.get(model)
        if absent and rights.may_use(model):
            message = (
                f"The model {shown!r} needs an adapter, and none of these is loaded: "
                f"{', '.join(absent)}. Ask an operator to load one. {advice}"
            )
        raise ApiError(MODEL_NOT_FOUND, message, param="model")

    def may_use(self, rights: KeyRights, model: str) -> bool:
        """Return whether a key may use a name: by itself, or by its model's own name."""
        route = self.models.get(model)
        return rights.may_use(model) or (route is not None and rights.may_use(route.name))

    def check(self, rights: KeyRights, model: str) -> WeightedPools:
        """Return the route of a model or adapter that the key may use.

        Raises ApiError: 404 if no pool serves it, 403 if the key may use neither this name nor the
        model's own.
        """
        route = self.route_of(model, rights)
        rights.check_model(route.name if rights.may_use(route.name) else model)
        return route

    def refresh_metrics(self, states: Mapping[str, Mapping[str, int]]) -> None:
        """Update the gauges; `states` is as in `serve_controller.Status`."""
        for pool in self.by_name.values():
            pool.refresh_metrics(*replica_counts(pool, states))

    def close(self) -> None:
        """Stop waiting for removed pools."""
        for task in self._leaving:
            task.cancel()

    def _made(self, fleet: Fleet, name: str) -> GatewayPool:
        parts = parts_of(
            fleet,
            name,
            self._connections,
            self._transport_of(name),
            self._replicas,
            RoutingMetrics(self._metrics, name),
            AdmissionMetrics(self._metrics, name),
        )
        return GatewayPool(fleet, name, parts)

    async def _end(self, pool: GatewayPool) -> None:
        """End a removed pool once no request waits in it: at the latest at their deadlines."""
        while pool.is_waited_for:  # noqa: ASYNC110  # requests leave at their deadlines
            await asyncio.sleep(LOOK_PERIOD_S)
        await self._loops.stop(self._running.pop(pool))
        pool.refresh_metrics({}, 0)


def replica_counts(
    pool: GatewayPool, states: Mapping[str, Mapping[str, int]]
) -> tuple[dict[str, int], int]:
    """Return the numbers of replicas by state of the metric `antefix_replicas`, and the target.

    `states` is as in `serve_controller.Status`.
    """
    board, serves = pool.scheduler.board, states.get(pool.name, {})
    warm = board.warm().values()
    asleep = sum(load.asleep for load in warm)
    counts = {
        "active": len(board.loads()),
        "warm": len(warm) - asleep,
        "asleep": asleep,
        "suspect": len(board.suspects()),
        "leaving": len(board.leaving()),
        "starting": sum(n for state, n in serves.items() if state not in _NOT_STARTING),
        "stopping": serves.get("STOPPING", 0),
    }
    decided = pool.decided
    return counts, decided.target if decided else target_replicas(pool, serves)


def target_replicas(pool: GatewayPool, states: Mapping[str, int]) -> int:
    """Return the target number of replicas.

    With autoscaling, all existing and starting replicas count as wanted.
    """
    if pool.settings.autoscaling is None:
        return pool.settings.first_replicas
    there = sum(count for state, count in states.items() if state != "STOPPING")
    return max(least_replicas(pool), there)


def least_replicas(pool: GatewayPool) -> int:
    autoscaling = pool.settings.autoscaling
    return autoscaling.min_replicas if autoscaling else pool.settings.first_replicas
