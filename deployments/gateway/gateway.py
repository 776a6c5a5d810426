"""A gateway process as a Ray Serve deployment. Imports neither vLLM nor torch.

`parts` builds the gateway's components. `inference` is a request's path through them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette

from common.loops import forever
from common.release import VERSION
from deployments.fleet.applications import application_of, settings_of
from deployments.fleet.fleet import Fleet, FleetBase
from deployments.gateway.answer.error_answers import answer_errors
from deployments.gateway.answer.mirrors import Mirror
from deployments.gateway.api.endpoints import openapi_paths
from deployments.gateway.gateway_parts import GatewayParts, Secrets, parts_of
from deployments.gateway.inference import Inference
from deployments.gateway.inquiries.adapter_requests import AdapterRequests
from deployments.gateway.inquiries.canary_requests import CanaryRequests
from deployments.gateway.inquiries.health import unheard_s
from deployments.gateway.inquiries.inquiries import Inquiries
from deployments.gateway.inquiries.other_releases import SchemaWatch
from deployments.gateway.inquiries.profiles import Profiles
from deployments.gateway.inquiries.status import StatusSources
from deployments.gateway.intake.in_force import given_fleet
from deployments.gateway.page import PLATFORM, add_page
from deployments.gateway.record.request_watch import promise_of
from deployments.process import node_drain, node_metrics
from deployments.process.http_server import HttpServer
from deployments.process.interpreter import keep_responsive
from deployments.process.serve_log import adopt_logs, set_log_level
from deployments.wire.inference_paths import INFERENCE_PATHS
from observability.metrics import metric_files
from router.redis.redis_client import REDIS_FAILURES

logger = logging.getLogger("ray.serve")

METRICS_PERIOD_S = 1.0
# The last part of a drain, in which a gateway sends errors to clients whose streams still run.
STOP_TIMEOUT_S = 2.0


def handle_of_pool(name: str) -> DeploymentHandle[Any]:
    """Return a handle to a pool's replicas, even if none exist yet."""
    return serve.get_deployment_handle(name, application_of(name), _check_exists=False)


class Gateway:
    """Ray Serve deployment class: one gateway replica, on the fleet's port of its node.

    It listens once `reconfigure` has provided usable settings.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        base: FleetBase,
        secrets: Secrets,
        handle_of: Callable[[str], DeploymentHandle[Any]] = handle_of_pool,
    ) -> None:
        self._base = base
        self._own_process()
        self.parts = parts_of(base, secrets, handle_of)
        self._inference = Inference(self.parts)
        self._dropped_reported = 0
        self._closes_at = 0.0
        self._listens = False
        self.server = HttpServer(application(self.parts, self._inference))
        self.parts.families.build.labels(VERSION).set(1)
        self._start_loops(secrets)

    def _start_loops(self, secrets: Secrets) -> None:
        parts, loops = self.parts, self.parts.loops
        loops.start("explanations", parts.explanations.run())
        loops.start("settings", parts.written.run())
        loops.start("schemas", SchemaWatch(parts.text, self._base.redis_name, time.time).run())
        loops.start("serve_controller", parts.controller.run())
        fails = "failed to update metrics"
        keep = forever("metrics", self._keep_metrics, METRICS_PERIOD_S, fails=fails, logger=logger)
        loops.start("metrics", keep)
        loops.start("budgets", parts.budgets.run())
        loops.start("canaries", parts.canaries.run())
        loops.start("adapters", parts.adapters.run())
        loops.start("fatal_requests", parts.fatal.run())
        if secrets.keys_file:
            parts.keys.take(keys_file := Path(secrets.keys_file))
            loops.start("api_keys", parts.keys.follow(keys_file))
        if ray.is_initialized():  # otherwise get_runtime_context would start Ray
            node = ray.get_runtime_context().get_node_id()
            # 0 open requests: they have all ended once `leave` returns
            loops.start("node_drain", node_drain.follow(node, self.leave, lambda: 0))

    async def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply new settings, in the format of `applications.settings_of`. Ray Serve calls this.

        Unusable settings are logged and change nothing: Ray Serve would stop a gateway that raises
        here. A new gateway with unusable settings uses those of the other gateways, from Redis.
        """
        fleet: Fleet | None
        try:
            fleet = await asyncio.to_thread(given_fleet, settings)
        except Exception as error:
            self._refuse(error)
            if self._listens or (fleet := await self._settings_of_others()) is None:
                return
        else:
            self.parts.in_force.refused = ""
        try:
            self._change(self._base.applied_to(fleet))
        except Exception as error:
            self._refuse(error)
            return
        if not self._listens:
            await self.server.start(self._base.gateway.host, self._base.gateway.port)
            self._listens = True

    async def check_health(self) -> None:
        """Check the gateway's health. Ray Serve calls this.

        Raises RuntimeError while the gateway has no settings, and permanently once a background
        loop has ended: only a new process starts it again.
        """
        if ended := self.parts.loops.ended:
            raise RuntimeError(f"the background loop {ended[0]} has ended")
        if not self._listens:
            raise RuntimeError(
                self.parts.in_force.refused or "The gateway has received no user_config."
            )

    def _change(self, fleet: Fleet) -> None:
        """Apply all of the fleet without an `await`, so no request sees a part of it."""
        self.parts.pools.change(fleet)
        self.parts.adapters.change(fleet)
        self.parts.in_force.fleet = fleet
        self.parts.budgets.change(fleet)
        self.parts.canaries.change(fleet)
        self.parts.mirrors.change(
            {
                name: Mirror(route.mirror.pool, route.mirror.percent / 100)
                for name, route in fleet.models.items()
                if route.mirror is not None
            }
        )
        self.parts.health.pools = self.parts.pools.by_name
        tenants = fleet.gateway.tenants.values()
        self.parts.explanations.share(fleet.gateway.replicas)
        self.parts.explanations.for_operators = any(rights.operator for rights in tenants)
        promised = {name: promise_of(pool) for name, pool in fleet.pools.items()}
        self.parts.requests.promise(promised)
        set_log_level(fleet.log_level)
        settings = settings_of(fleet.model_dump(mode="json"))
        self.parts.written.give(json.dumps(settings, sort_keys=True))

    def _refuse(self, error: Exception) -> None:
        self.parts.in_force.refused = str(error)
        logger.error("rejected new settings; keeping the previous ones: %s", error)

    async def _settings_of_others(self) -> Fleet | None:
        try:
            found = await self.parts.written.read()
            return Fleet.model_validate_json(found.fleet) if found else None
        except (*REDIS_FAILURES, ValueError):
            return None

    async def __del__(self) -> None:
        """Drain, then close everything. Ray Serve awaits this, up to `drain_timeout_s`.

        Open answers end first. Clients of answers that take longer get an error.
        """
        with contextlib.suppress(AttributeError):  # also runs after a failed __init__
            leaving = asyncio.ensure_future(self.leave(unheard_s()))
            drain_s = self._base.gateway.drain_timeout_s
            most_s = unheard_s() + max(drain_s / 2, drain_s - STOP_TIMEOUT_S)
            await asyncio.wait({leaving}, timeout=most_s)
            for relay in list(self._inference.relays):
                relay.stop()
            await leaving
            self.parts.bodies.close()
            await self.parts.mirrors.close()
            await self.parts.budgets.close()
            await self.parts.explanations.written()
            await self.parts.loops.stop()
            self.parts.pools.close()
            self.refresh_metrics({})
            await self.parts.session.close()
            await self.parts.text.aclose()
            await self.parts.binary.aclose()
            await self.parts.tracing.close()

    async def leave(self, after_s: float) -> None:
        """Serve for another `after_s` seconds, so load balancers notice; then finish open requests.

        `after_s` counts from the first call: later calls wait for the same time.
        """
        now = asyncio.get_running_loop().time()
        if not self.parts.health.leaving:
            self.parts.health.leaving = True
            self._closes_at = now + after_s
            self.server.close_connections()
        # a node's drain and Ray Serve both call this
        await asyncio.sleep(self._closes_at - now)
        await self.server.drain()

    def _own_process(self) -> None:
        """Set up process-wide logs, scheduling and metrics. Tests that share a process skip it."""
        adopt_logs("gateway")
        keep_responsive()
        node_metrics.join(self._base.name, self._base.metrics, metric_files.write_as_gateway)

    async def _keep_metrics(self) -> None:
        """Refresh the gauges periodically: the process that serves them cannot request it."""
        self.refresh_metrics(self.parts.controller.status.last.states)

    def refresh_metrics(self, states: Mapping[str, Mapping[str, int]]) -> None:
        """Update the gauges; `states` is as in `serve_controller.Status`."""
        self.parts.families.tasks.set(len(asyncio.all_tasks()))
        dropped = self.parts.explanations.dropped
        self.parts.families.shared.explanations_dropped.inc(dropped - self._dropped_reported)
        self._dropped_reported = dropped
        self.parts.families.shared.settings_refused.set(bool(self.parts.in_force.refused))
        self.parts.families.shared.budgets_by_share.set(self.parts.budgets.by_share)
        self.parts.families.shared.tenants_held.set(self.parts.budgets.tenants_held)
        self.parts.families.shared.redis_full.set(self.parts.budgets.redis_is_full)
        self.parts.families.keys_stale.set(bool(self.parts.keys.stale))
        pools = self.parts.pools.by_name.values()
        self.parts.process_metrics.refresh(pool.decided for pool in pools if pool.decided)
        now = asyncio.get_running_loop().time()
        try:
            self.parts.budget_metrics.refresh(now)
            self.parts.canary_metrics.refresh(self.parts.canaries.readings())
            self.parts.pools.refresh_metrics(states)
        finally:
            # last: it writes the counts of all the others
            self.parts.requests.refresh(now)


def application(parts: GatewayParts, inference: Inference) -> Starlette:
    """Return the app with every endpoint in `deployments.gateway.api.endpoints`."""
    app = Starlette()
    app.router.redirect_slashes = False  # `answer_errors` does
    for path in INFERENCE_PATHS:
        app.add_route(path, inference.infer, methods=["POST"])
    inquiries = Inquiries(
        sources=StatusSources(
            in_force=parts.in_force,
            pools=parts.pools,
            controller=parts.controller,
            traffic=parts.requests.traffic,
            budgets=parts.budget_metrics,
            is_held=parts.fatal.is_held,
        ),
        keys=parts.keys,
        holder_of=inference.holder_of,
        explanations=parts.explanations,
        own_paths=openapi_paths(),
    )
    inquiries.add_to(app)
    CanaryRequests(parts.in_force, inference.holder_of, parts.canaries).add_to(app)
    AdapterRequests(parts.in_force, inference.holder_of, parts.pools, parts.adapter_loads).add_to(
        app
    )
    Profiles(parts.in_force, inference.holder_of, parts.pools, parts.profiles).add_to(app)
    parts.health.add_to(app)
    add_page(app, os.environ.get(PLATFORM, ""))
    answer_errors(app)
    return app
