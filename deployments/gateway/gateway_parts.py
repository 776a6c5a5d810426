"""Builds the parts of one gateway."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from ray.serve.handle import DeploymentHandle

from common.loops import Loops
from common.release import VERSION
from deployments.fleet.fleet import FleetBase
from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.mirrors import Mirrors
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.engine_stream import connector
from deployments.gateway.attempt.sockets import CONNECT_TIMEOUT_S, impatient_socket
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.checks.budgets import TenantBudgets
from deployments.gateway.checks.fatal_requests import FatalRequests
from deployments.gateway.inquiries.adapter_loads import AdapterLoads
from deployments.gateway.inquiries.health import Health
from deployments.gateway.inquiries.profile_requests import ProfileRequests
from deployments.gateway.intake.api_keys import ApiKeys, WrongKeys
from deployments.gateway.intake.bodies import Bodies
from deployments.gateway.intake.cache_salt import CacheSalts
from deployments.gateway.intake.in_force import InForce
from deployments.gateway.models.canaries import Canaries
from deployments.gateway.models.model_routes import Conversations
from deployments.gateway.models.shared_adapters import Adapters
from deployments.gateway.pool.pool_parts import Connections
from deployments.gateway.pool.pools import Pools
from deployments.gateway.pool.serve_controller import ServeController
from deployments.gateway.record.explanations import Explanations
from deployments.gateway.record.process_metrics import ProcessMetrics
from deployments.gateway.record.request_watch import RequestWatch
from observability.metrics.budget_metrics import BudgetMetrics
from observability.metrics.canary_metrics import CanaryMetrics
from observability.metrics.families import Families
from observability.metrics.mirror_metrics import MirrorMetrics
from observability.metrics.request_metrics import RequestMetrics
from observability.traces.request_record import GatewayTracing
from observability.traces.tracing import tracing_of
from router.board.fleet_settings import SettingsWriter
from router.budgets.budget_book import places_of
from router.redis.redis_client import AsyncRedis, connect
from router.redis.signature import Signer


@dataclass(frozen=True, repr=False)
class Secrets:
    """The secrets of a fleet. They are never logged, because the class has no repr.

    `api_keys` maps clients' keys to tenants. Gateways also follow `keys_file`, if one is set, which
    has further keys. `engine_secret` opens the replicas' ports.
    """

    api_keys: Mapping[str, str]
    engine_secret: str
    redis_url: str
    keys_file: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class GatewayParts:
    """The parts of one gateway. `text` and `binary` are connections to Redis. `written` writes the
    settings that other gateways, engines and the autoscaler read."""

    session: aiohttp.ClientSession
    text: AsyncRedis
    binary: AsyncRedis
    loops: Loops
    in_force: InForce
    written: SettingsWriter
    keys: ApiKeys
    wrong_keys: WrongKeys
    bodies: Bodies
    salts: CacheSalts
    budgets: TenantBudgets
    fatal: FatalRequests
    controller: ServeController
    pools: Pools
    conversations: Conversations
    canaries: Canaries
    mirrors: Mirrors
    adapters: Adapters
    adapter_loads: AdapterLoads
    engines: EngineRequests
    counts: FinalCounts
    profiles: ProfileRequests
    explanations: Explanations
    watch: RequestWatch
    tracing: GatewayTracing
    families: Families
    requests: RequestMetrics
    budget_metrics: BudgetMetrics
    canary_metrics: CanaryMetrics
    process_metrics: ProcessMetrics
    health: Health


def parts_of(
    base: FleetBase, secrets: Secrets, handle_of: Callable[[str], DeploymentHandle[Any]]
) -> GatewayParts:
    """Return the parts of one gateway of a fleet. `handle_of` returns a pool's Ray Serve handle.

    No part does anything before its loop is started.
    """
    session = aiohttp.ClientSession(
        connector=connector(limit=0, keepalive_timeout=60, socket_factory=impatient_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
    )
    url, secret, name = secrets.redis_url, secrets.engine_secret, base.redis_name
    text, binary = connect(url), connect(url, decode=False)
    families, loops, controller, bodies = Families(), Loops(), ServeController(), Bodies()
    requests, budget_metrics = RequestMetrics(families, {}), BudgetMetrics(families)
    explanations = Explanations(binary, name)
    fatal = FatalRequests(binary, name, secret)
    places = places_of(name, url)
    budgets = TenantBudgets(binary, name, places, budget_metrics, fatal.is_held)
    canaries = Canaries(text, name, Signer(secret))
    adapters = Adapters(text, name, Signer(secret))
    pools = Pools(
        Connections(text, binary, session, secret),
        lambda pool: Transport(handle_of(pool), secret),
        controller.replicas,
        families,
        loops,
        adapters,
    )
    engines, counts = EngineRequests(session), FinalCounts(session, secret)
    mirrors = Mirrors(pools, engines, counts, MirrorMetrics(families), fatal)
    return GatewayParts(
        session=session,
        text=text,
        binary=binary,
        loops=loops,
        in_force=InForce(),
        written=SettingsWriter(text, base.board, Signer(secret), time.time),
        keys=ApiKeys(secrets.api_keys),
        wrong_keys=WrongKeys(),
        bodies=bodies,
        salts=CacheSalts(secret),
        budgets=budgets,
        fatal=fatal,
        controller=controller,
        pools=pools,
        conversations=Conversations(text, name, secret),
        canaries=canaries,
        mirrors=mirrors,
        adapters=adapters,
        adapter_loads=AdapterLoads(session, secret),
        engines=engines,
        counts=counts,
        profiles=ProfileRequests(session, secret),
        explanations=explanations,
        watch=RequestWatch(
            requests,
            explanations,
            lambda record, end: bodies.settle(record),
            budgets.settle,
            canaries.ended,
            mirrors.ended,
        ),
        tracing=tracing_of(os.environ, VERSION),
        families=families,
        requests=requests,
        budget_metrics=budget_metrics,
        canary_metrics=CanaryMetrics(families),
        process_metrics=ProcessMetrics(families),
        health=Health(session, loops, controller),
    )
