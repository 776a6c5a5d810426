"""The parts of one pool in a gateway."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import aiohttp

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import PoolSettings
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.gateway.attempt.moves import Moves
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.pool.prompt_reader import PromptReader
from deployments.gateway.pool.renderer_client import RendererClient
from deployments.gateway.pool.serve_controller import AllReplicas, Question
from deployments.gateway.pool.start_watch import StartWatch
from deployments.gateway.pool.turns import Turns
from deployments.gateway.pool.warm_promotions import WarmPromotions
from deployments.gateway.record.pool_reporter import PoolReporter
from observability.metrics.metrics import AdmissionMetrics, RoutingMetrics
from router.board.pool_demand import Decided, read_decided, tell
from router.board.pool_feeds import PoolFeeds
from router.index.segment_keys import SegmentHasher, index_secret
from router.redis.redis_client import AsyncRedis
from router.redis.signature import Signer


@dataclass(frozen=True, repr=False)
class Connections:
    """Connections to Redis and engines: `text` for the load board, `binary` for the index.

    `secret`: the fleet's secret for its engines.
    """

    text: AsyncRedis
    binary: AsyncRedis
    session: aiohttp.ClientSession
    secret: str


@dataclass(frozen=True, eq=False)
class PoolParts:
    """One pool's parts.

    `read_decided` reads the autoscaler's last decision. `tell_demand` reports the gateway's demand
    until cancelled, while its argument returns true.
    """

    scheduler: PoolScheduler
    feeds: PoolFeeds
    reader: PromptReader
    reporter: PoolReporter
    transport: Transport
    moves: Moves
    turns: Turns
    starts: StartWatch
    promotions: WarmPromotions
    routing_metrics: RoutingMetrics
    admission_metrics: AdmissionMetrics
    read_decided: Callable[[], Awaitable[Decided | None]]
    tell_demand: Callable[[Callable[[], bool]], Awaitable[None]]


def parts_of(
    fleet: Fleet,
    name: str,
    connections: Connections,
    transport: Transport,
    replicas: Question[AllReplicas],
    routing_metrics: RoutingMetrics,
    admission_metrics: AdmissionMetrics,
) -> PoolParts:
    """Build the parts of a pool. `replicas`: the replicas that Ray Serve runs, of all pools."""
    pool = fleet.pools[name]
    scheduler = PoolScheduler(asyncio.get_running_loop().time, settings_of(fleet, name))
    board, board_name, signer = scheduler.board, fleet.board_of(name), Signer(connections.secret)
    feeds = PoolFeeds(
        connections.text,
        connections.binary,
        board_name,
        board,
        scheduler.gateway,
        scheduler.heard,
        fleet.redis.lookup_budget_ms / 1000,
        scaled=pool.is_scaled,
        signer=signer,
    )
    scheduler.announce = feeds.announce
    renderer = RendererClient(connections.session, connections.secret, board)
    hasher = SegmentHasher(index_secret(connections.secret))
    reporter = PoolReporter(name, pool.slo.by_class(), board, routing_metrics)
    gateway = secrets.token_hex(8)

    def tell_demand(is_wanted: Callable[[], bool]) -> Awaitable[None]:
        demand = scheduler.demand
        return tell(
            connections.text, board_name, gateway, demand, signer=signer, is_wanted=is_wanted
        )

    return PoolParts(
        scheduler=scheduler,
        feeds=feeds,
        reader=PromptReader(pool, renderer, hasher, board, feeds, routing_metrics),
        reporter=reporter,
        transport=transport,
        moves=Moves(board),
        turns=Turns(scheduler),
        starts=StartWatch(name, board, replicas, startup_of(pool)),
        promotions=WarmPromotions(feeds, board, reporter),
        routing_metrics=routing_metrics,
        admission_metrics=admission_metrics,
        read_decided=partial(read_decided, connections.text, board_name, signer),
        tell_demand=tell_demand,
    )


def settings_of(fleet: Fleet, name: str) -> PoolSettings:
    """Return the scheduler's settings for the pool of this name."""
    pool = fleet.pools[name]
    return PoolSettings(
        pool.slo.by_class(),
        pool.batch_queue,
        pool.overflow.rules() if pool.overflow else None,
        pool.policy,
        pool.shadow_policy,
        pool.max_queued_requests,
        {tenant: rights.weight for tenant, rights in fleet.gateway.tenants.items()},
    )


def startup_of(pool: Pool) -> float | None:
    """Return the duration of a start in the fleet file, in seconds; None if it has none."""
    return pool.autoscaling.startup_s if pool.autoscaling else None
