"""The OpenAI API in front of a fleet. Imports neither vLLM nor torch.

A gateway checks what it must (key, size, JSON, model), places the request and relays it; the
engine's own server validates and answers, so everything vLLM supports passes through. Nothing
about placing can fail a request: what is not known in time is done without.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import aiohttp
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from common.loops import Loops, forever
from common.release import VERSION
from deployments.fleet.applications import application_of, settings_of
from deployments.fleet.fleet import Fleet, FleetBase
from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.rejoining import RESUME_HEADER, Keeping, Rejoining
from deployments.gateway.answer.relay import AnyAttempt, Relay
from deployments.gateway.attempt.engine_stream import connector
from deployments.gateway.attempt.sockets import CONNECT_TIMEOUT_S, impatient_socket
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.checks.budgets import TenantBudgets
from deployments.gateway.checks.fatal_requests import FatalRequests
from deployments.gateway.checks.request_checks import check_answer, check_fields
from deployments.gateway.given_settings import readable
from deployments.gateway.inquiries.health import Health, unheard_s
from deployments.gateway.inquiries.inquiries import Inquiries
from deployments.gateway.inquiries.other_releases import SchemaWatch
from deployments.gateway.intake import request_body
from deployments.gateway.intake.api_keys import ApiKeys, KeyHolder, WrongKeys
from deployments.gateway.intake.asked import INFERENCE_PATHS
from deployments.gateway.intake.bodies import Bodies, Upload
from deployments.gateway.intake.cache_salt import CacheSalts
from deployments.gateway.intake.error_answers import answer_errors, request_id_of
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import EngineRequest
from deployments.gateway.intake.request_options import options_of, timeout_of
from deployments.gateway.interpreter import keep_responsive
from deployments.gateway.page import PLATFORM, add_page
from deployments.gateway.pool.pool import Connections
from deployments.gateway.pool.pools import Pools
from deployments.gateway.pool.serve_controller import ServeController
from deployments.gateway.record.explanations import Explanations
from deployments.gateway.record.held_metrics import HeldMetrics
from deployments.gateway.record.process_metrics import ProcessMetrics
from deployments.gateway.record.request_watch import RequestWatch, promise_of
from deployments.process import node_drain, node_metrics
from deployments.process.http_server import HttpServer
from deployments.process.serve_log import adopt_logs, current_request, set_log_level
from observability import metric_files
from observability.budget_metrics import BudgetMetrics
from observability.families import Families
from observability.request_metrics import RequestMetrics
from observability.request_record import CLIENT_LEFT, RequestRecord
from observability.tracing import tracing_of
from router.budget_book import books_of
from router.fleet_settings import SettingsWriter
from router.redis_client import REDIS_FAILURES, connect
from router.signature import Signer

logger = logging.getLogger("ray.serve")

METRICS_PERIOD_S = 1.0
# In which a gateway that is stopped tells the clients whose streams take too long.
LAST_WORDS_S = 2.0


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a fleet keeps to itself. Never logged: it has no repr.

    `api_keys` maps clients' keys to tenants; those of `keys_file`, where there is one, come beside
    them: gateways follow it. `engine_secret` opens the replicas' ports.
    """

    api_keys: Mapping[str, str]
    engine_secret: str
    redis_url: str
    keys_file: str = ""


def handle_of_pool(name: str) -> DeploymentHandle[Any]:
    """To a pool's replicas, whether there are any yet or not."""
    return serve.get_deployment_handle(name, application_of(name), _check_exists=False)


class Gateway:
    """Ray Serve deployment class: one gateway replica, on the fleet's port of its node.

    It listens once `reconfigure` has told it what to serve.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        base: FleetBase,
        secrets: Secrets,
        handle_of: Callable[[str], DeploymentHandle[Any]] = handle_of_pool,
    ) -> None:
        self._base = base
        self._fleet: Fleet
        self._own_process()
        self._keys = ApiKeys(secrets.api_keys)
        self._wrong_keys = WrongKeys()
        self._session = aiohttp.ClientSession(
            connector=connector(limit=0, keepalive_timeout=60, socket_factory=impatient_socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
        )
        url = secrets.redis_url
        self._text, self._binary = connect(url), connect(url, decode=False)
        self._explanations = Explanations(self._binary, base.redis_name)
        self._dropped_told = 0
        self._loops = Loops()
        self._controller = ServeController()
        self._metrics = Families()
        self._held = HeldMetrics(self._metrics, self)
        self._process_metrics = ProcessMetrics(self._metrics)
        self._metrics.build.labels(VERSION).set(1)
        self._requests = RequestMetrics(self._metrics, {})
        self._budget_metrics = BudgetMetrics(self._metrics)
        books = books_of(base.redis_name, url)
        self._budgets = TenantBudgets(self._binary, base.redis_name, books, self._budget_metrics)
        self._bodies = Bodies()
        self._watch = RequestWatch(
            self._requests, self._explanations, self._bodies.settle, self._budgets.settle
        )
        self._tracing = tracing_of(os.environ, VERSION)
        secret = secrets.engine_secret
        self._salts = CacheSalts(secret)
        self._fatal = FatalRequests(self._binary, base.redis_name, secret)
        self._rejoining = Rejoining(self._session, secret)
        self._counts = FinalCounts(self._session, secret)
        self._pools = Pools(
            Connections(self._text, self._binary, self._session, secret),
            lambda pool: Transport(handle_of(pool), secret),
            self._controller.replicas,
            self._metrics,
            self._loops,
        )
        self._health = Health(self._session, self._loops, self._controller)
        self._inquiries = Inquiries(
            lambda: self._fleet,
            lambda: self._refused,
            self._keys,
            self._holder_of,
            self._pools,
            self._controller,
            self._explanations,
            INFERENCE_PATHS,
        )
        self._written = SettingsWriter(self._text, base.board, Signer(secret), time.time)
        self._refused = ""
        self._loops.start("explanations", self._explanations.run())
        self._loops.start("settings", self._written.run())
        self._loops.start("schemas", SchemaWatch(self._text, base.redis_name, time.time).run())
        self._loops.start("serve_controller", self._controller.run())
        self._loops.start(
            "metrics",
            forever(
                "metrics",
                self._keep_metrics,
                METRICS_PERIOD_S,
                fails="metrics are not up to date",
                logger=logger,
            ),
        )
        self._loops.start("held_metrics", self._held.run())
        self._loops.start("budgets", self._budgets.run())
        self._loops.start("fatal_requests", self._fatal.run())
        if secrets.keys_file:
            self._keys.take(keys_file := Path(secrets.keys_file))
            self._loops.start("api_keys", self._keys.follow(keys_file))
        self._server = HttpServer(self._app())
        self._closes_at = 0.0
        self._relays: WeakSet[Relay] = WeakSet()
        self._listens = False
        if ray.is_initialized():  # else asking for the node would start one
            node = ray.get_runtime_context().get_node_id()
            # its requests have ended when it has left
            drained = node_drain.follow(node, self._leave, lambda: 0)
            self._loops.start("node_drain", drained)

    async def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Ray Serve's: serve by these settings from now on, as `applications.settings_of` has them.

        Those that cannot be used are told of and change nothing: Ray Serve would stop a gateway
        that raises here. One that begins with such takes what the others serve by.
        """
        fleet: Fleet | None
        try:
            fleet = await asyncio.to_thread(readable, settings)
        except Exception as error:
            self._refuse(error)
            if self._listens or (fleet := await self._settings_of_others()) is None:
                return
        else:
            self._refused = ""
        try:
            self._change(self._base.applied_to(fleet))
        except Exception as error:
            self._refuse(error)
            return
        if not self._listens:
            await self._server.start(self._base.gateway.host, self._base.gateway.port)
            self._listens = True

    async def check_health(self) -> None:
        """Ray Serve's. Raises RuntimeError while there is nothing to serve by, and for good once a
        background loop has ended: only another process has it again."""
        if ended := self._loops.ended:
            raise RuntimeError(f"the background loop {ended[0]} has ended")
        if not self._listens:
            raise RuntimeError(self._refused or "The gateway was given no user_config.")

    def _change(self, fleet: Fleet) -> None:
        """All at once: no request may see a part of it."""
        self._pools.change(fleet)
        self._fleet = fleet
        self._budgets.change(fleet)
        self._health.pools = self._pools.by_name
        tenants = fleet.gateway.tenants.values()
        self._explanations.share(fleet.gateway.replicas)
        self._explanations.for_operators = any(rights.operator for rights in tenants)
        self._requests.promise({name: promise_of(pool) for name, pool in fleet.pools.items()})
        set_log_level(fleet.log_level)
        told = settings_of(fleet.model_dump(mode="json"))
        self._written.give(json.dumps(told, sort_keys=True))

    def _refuse(self, error: Exception) -> None:
        self._refused = str(error)
        logger.error("the new settings are refused, the gateway goes on as it was: %s", error)

    async def _settings_of_others(self) -> Fleet | None:
        try:
            found = await self._written.read()
            return Fleet.model_validate_json(found.fleet) if found else None
        except (*REDIS_FAILURES, ValueError):
            return None

    async def __del__(self) -> None:
        """Answers under way end first: Ray Serve waits `drain_timeout_s` for this, and clients of
        those that take longer are told."""
        with contextlib.suppress(AttributeError):  # called after a failed __init__ too
            leaving = asyncio.ensure_future(self._leave(unheard_s()))
            drain_s = self._base.gateway.drain_timeout_s
            most_s = unheard_s() + max(drain_s / 2, drain_s - LAST_WORDS_S)
            await asyncio.wait({leaving}, timeout=most_s)
            for relay in list(self._relays):
                relay.stop()
            await leaving
            self._bodies.close()
            await self._budgets.close()
            await self._explanations.written()
            await self._loops.stop()
            self._pools.close()
            self.refresh_metrics({})
            await self._session.close()
            await self._text.aclose()
            await self._binary.aclose()
            await self._tracing.close()

    async def _leave(self, after_s: float) -> None:
        """Go on until all who send requests have heard of it; then finish what is under way."""
        now = asyncio.get_running_loop().time()
        if not self._health.leaving:
            self._health.leaving = True
            self._closes_at = now + after_s
            self._server.close_connections()
        # a node's drain and Ray Serve both ask for it
        await asyncio.sleep(self._closes_at - now)
        await self._server.drain()

    def _own_process(self) -> None:
        """What is for a process that has no other task."""
        adopt_logs("gateway")
        keep_responsive()
        node_metrics.join(self._base.name, self._base.metrics, metric_files.write_as_gateway)

    async def _keep_metrics(self) -> None:
        """Bring the gauges up to date until cancelled: who serves the metrics cannot ask."""
        self._refresh_metrics(self._controller.status.last.states)

    def refresh_metrics(self, states: Mapping[str, Mapping[str, int]]) -> None:
        """Bring the gauges up to date; `states` is as in `serve_controller.Status`."""
        self._held.refresh()
        self._refresh_metrics(states)

    def _refresh_metrics(self, states: Mapping[str, Mapping[str, int]]) -> None:
        dropped = self._explanations.dropped
        self._metrics.explanations_dropped.inc(dropped - self._dropped_told)
        self._dropped_told = dropped
        self._metrics.settings_refused.set(bool(self._refused))
        self._metrics.budgets_by_share.set(self._budgets.by_share)
        self._metrics.redis_full.set(self._budgets.redis_is_full)
        self._metrics.keys_stale.set(bool(self._keys.stale))
        pools = self._pools.by_name.values()
        self._process_metrics.refresh(of.decided for of in pools if of.decided)
        now = asyncio.get_running_loop().time()
        try:
            self._budget_metrics.refresh(now)
            self._pools.refresh_metrics(states)
        finally:
            # last: it writes what all have counted
            self._requests.refresh(now)

    def _app(self) -> Starlette:
        app = Starlette()
        app.router.redirect_slashes = False  # `answer_errors` does
        for path in INFERENCE_PATHS:
            app.add_route(path, self.infer, methods=["POST"])
        self._inquiries.add_to(app)
        self._health.add_to(app)
        add_page(app, os.environ.get(PLATFORM, ""))
        answer_errors(app)
        return app

    def _holder_of(self, request: Request) -> KeyHolder:
        """Whose key it has. Raises ApiError 401."""
        try:
            return self._keys.check(request.headers)
        except ApiError as error:
            self._requests.error(error.code)
            if error.code != "missing_api_key" and request.client is not None:
                self._wrong_keys.came_from(request.client.host)
            raise

    async def infer(self, request: Request) -> Response:
        arrived = asyncio.get_running_loop().time()
        holder = self._holder_of(request)
        record = RequestRecord(request_id_of(request), holder.tenant, request.url.path, arrived)
        current_request.set(record.request_id)
        try:
            return await self._relay(request, record, holder)
        except ClientDisconnect:
            self._watch.ended(record)
            return Response(status_code=CLIENT_LEFT)
        except BaseException as error:
            if isinstance(error, ApiError):
                record.failed(error.status, error.code)
            elif isinstance(error, Exception):
                record.failed(500, "gateway_error")
            self._watch.ended(record)
            raise

    async def _relay(self, request: Request, record: RequestRecord, holder: KeyHolder) -> Relay:
        """Read the request, check it, and have it scheduled. Raises ApiError."""
        limits = self._fleet.gateway
        timeout_s = timeout_of(request.headers, limits.request_timeout_s)
        deadline = record.arrived + timeout_s
        rights, is_resume = holder.rights_in(limits), RESUME_HEADER in request.headers
        upload = Upload(
            request.headers,
            request.stream(),
            record,
            limits,
            timeout_s,
            holder.alone,
            count=partial(self._budgets.count, record, is_resume),
            check_model=partial(self._pools.check, rights),
        )
        body, fields = await self._bodies.take(upload)
        model = request_body.model_of(fields)
        pool = self._pools.of_model(model)
        record.model, record.pool = model, pool.name
        since_s = asyncio.get_running_loop().time() - record.connected
        record.trace = self._tracing.request(request.headers, since_s)
        self._watch.begun(record)
        rights.check_model(model)
        options = options_of(request.headers, fields, rights, pool.overflow_model)
        check_fields(record, fields, pool.settings, limits)
        record.priority = options.priority
        engine_request = EngineRequest(
            request_id=record.request_id,
            tenant=record.tenant,
            path=record.path,
            body=body,
            cache_salt=self._salts.of(
                record.path, record.tenant, limits.cache_group_of(record.tenant), fields
            ),
            model=model,
            arrived=record.arrived,
            deadline=deadline,
            timeout_s=timeout_s,
            record=record,
        )
        hold_s = limits.resume_within_s
        if is_resume:
            await self._budgets.count_resume(record)
            rest = self._rejoining.attempt(
                request.headers, engine_request, fields, options, pool, hold_s
            )
            keeping = Keeping(self._rejoining, engine_request, hold_s, rest.reader)
            return self._relayed(engine_request, rest, {}, keeping)
        self._fatal.check(engine_request)
        headers: Mapping[str, str] = {}
        try:
            async with asyncio.timeout_at(deadline):
                pool_request = await pool.read(
                    engine_request, fields, request.headers, options, request.receive
                )
            check_answer(pool_request, pool, limits)
            headers = await self._budgets.admit(pool_request, pool)
            async with asyncio.timeout_at(deadline):
                attempt = await pool.schedule(pool_request, request.receive)
            is_kept = hold_s > 0 and pool_request.asked.stream
            kept = Keeping(self._rejoining, engine_request, hold_s) if is_kept else None
            return self._relayed(engine_request, attempt, headers, kept)
        except TimeoutError:
            raise engine_request.deadline_passed() from None
        except ApiError as error:
            error.headers = {**headers, **error.headers}
            raise

    def _relayed(
        self,
        request: EngineRequest,
        attempt: AnyAttempt,
        headers: Mapping[str, str],
        keeping: Keeping | None,
    ) -> Relay:
        retries = self._fatal.retries(request.tenant, self._fleet.gateway.retries)
        fatal = partial(self._fatal.add, request, retries)
        relay = Relay(
            self._session, attempt, self._watch, headers, retries, fatal, keeping, self._counts
        )
        self._relays.add(relay)
        return relay
