"""The OpenAI API in front of a fleet. Imports neither vLLM nor torch.

A gateway checks what it must (key, size, JSON, model), places the request and relays it; the
engine's own server validates and answers, so everything vLLM supports passes through. Nothing
about placing can fail a request: what is not known in time is done without.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import ray
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response

from deployments.fleet.fleet import Fleet
from deployments.gateway import request_body
from deployments.gateway.api_keys import ApiKeys
from deployments.gateway.engine_attempt import EngineAttempt
from deployments.gateway.error_answers import answer_errors, request_id_of
from deployments.gateway.errors import ApiError
from deployments.gateway.explanations import DECISIONS, EXPLANATION_TTL_S, Explanations
from deployments.gateway.health import Health, unheard_s
from deployments.gateway.model_cards import ModelCards
from deployments.gateway.page import add_page
from deployments.gateway.pool import Connections, GatewayPool
from deployments.gateway.relay import Relay
from deployments.gateway.request import EngineRequest
from deployments.gateway.request_options import options_of
from deployments.gateway.request_watch import RequestWatch, promise_of
from deployments.gateway.sockets import CONNECT_TIMEOUT_S, impatient_socket
from deployments.gateway.status import fleet_status, replica_counts, replica_states
from deployments.gateway.transport import Transport
from deployments.process import node_drain, node_metrics
from deployments.process.http_server import HttpServer
from deployments.process.serve_log import adopt_logs, current_request
from observability import metric_files
from observability.families import Families
from observability.metrics import AdmissionMetrics, RoutingMetrics
from observability.request_metrics import RequestMetrics
from observability.request_record import RequestRecord
from observability.tracing import tracing_of
from router.redis_client import REDIS_FAILURES, connect

logger = logging.getLogger("ray.serve")

INFERENCE_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)
SWITCH_INTERVAL_S = 0.0005
METRICS_PERIOD_S = 1.0
# Ray Serve's controller is asked more seldom.
STATES_TICKS = 5
VERSION = importlib.metadata.version("antefix")
TIMEOUT_HEADER = "x-antefix-timeout"
# Nobody reads it; logs of proxies call it so.
CLIENT_LEFT = 499


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a fleet keeps to itself. Never logged: it has no repr.

    `api_keys` maps a client's key to its tenant, as does `keys_file` where there is one: gateways
    read it again when it changes. `engine_secret` opens the replicas' ports.
    """

    api_keys: Mapping[str, str]
    engine_secret: str
    redis_url: str
    keys_file: str = ""


class Gateway:
    """Ray Serve deployment class: one gateway replica, on the fleet's port of its node."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, fleet: Fleet, secrets: Secrets, handles: Mapping[str, DeploymentHandle[Any]]
    ) -> None:
        self._fleet = fleet
        self._own_process()
        self._keys = ApiKeys(secrets.api_keys)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=60, socket_factory=impatient_socket
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            auto_decompress=False,
        )
        self._text, self._binary = (
            connect(secrets.redis_url),
            connect(secrets.redis_url, decode=False),
        )
        operators = any(rights.operator for rights in fleet.gateway.tenants.values())
        self._explanations = Explanations(self._binary, fleet.name, operators)
        self._dropped_told = 0
        self._metrics = Families()
        self._metrics.build.labels(VERSION).set(1)
        self._requests = RequestMetrics(
            self._metrics, {name: promise_of(pool) for name, pool in fleet.pools.items()}
        )
        self._watch = RequestWatch(self._requests)
        self._tracing = tracing_of(os.environ, VERSION)
        self._pools: dict[str, GatewayPool] = {}
        for name in fleet.pools:
            self._add_pool(name, secrets.engine_secret, handles)
        self._cards = {
            name: ModelCards(pool.settings, pool.transport) for name, pool in self._pools.items()
        }
        self._health = Health(self._pools, self._session)
        self._pool_by_model = {
            model: self._pools[name]
            for name, pool in fleet.pools.items()
            for model in pool.model_names
        }
        self._tasks = [asyncio.create_task(self._explanations.run())]
        self._tasks += [asyncio.create_task(pool.run()) for pool in self._pools.values()]
        self._tasks.append(asyncio.create_task(self._keep_metrics()))
        if secrets.keys_file:
            self._tasks.append(asyncio.create_task(self._keys.follow(Path(secrets.keys_file))))
        self._server = HttpServer(self._app())
        await self._server.start(fleet.gateway.host, fleet.gateway.port)
        if ray.is_initialized():  # else asking for the node would start one
            node = ray.get_runtime_context().get_node_id()
            # its requests have ended when it has left
            drained = node_drain.follow(node, self._leave, lambda: 0)
            self._tasks.append(asyncio.create_task(drained))

    async def __del__(self) -> None:
        """Streams under way finish first: Ray Serve waits `drain_timeout_s` for this."""
        with contextlib.suppress(AttributeError):  # called after a failed __init__ too
            await self._leave(unheard_s())
            for task in self._tasks:
                task.cancel()
            self.refresh_metrics({})
            await self._session.close()
            await self._text.aclose()
            await self._binary.aclose()
            await self._tracing.close()

    async def _leave(self, after_s: float) -> None:
        """Go on until all who send requests have heard of it; then finish what is under way."""
        if not self._health.leaving:
            self._health.leaving = True
            self._server.close_connections()
            await asyncio.sleep(after_s)
        await self._server.drain()

    def _own_process(self) -> None:
        """What is for a process that has no other task."""
        adopt_logs("gateway")
        # A thread that renders a long prompt must not keep the others' lookups waiting.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        node_metrics.join(self._fleet.name, self._fleet.metrics, metric_files.write_as_gateway)

    async def _keep_metrics(self) -> None:
        """Bring the gauges up to date until cancelled: who serves the metrics cannot ask."""
        states: Mapping[str, Mapping[str, int]] = {}
        for tick in count():
            await asyncio.sleep(METRICS_PERIOD_S)
            try:
                if tick % STATES_TICKS == 0:
                    states = await replica_states()
                self.refresh_metrics(states)
            except Exception:
                logger.exception("metrics are not up to date")

    def refresh_metrics(self, states: Mapping[str, Mapping[str, int]]) -> None:
        """Bring the gauges up to date; `states` is what `replica_states` says."""
        dropped = self._explanations.dropped
        self._metrics.explanations_dropped.inc(dropped - self._dropped_told)
        self._dropped_told = dropped
        for pool in self._pools.values():
            pool.refresh_metrics(*replica_counts(pool, states))
        # last: it writes what all have counted
        self._requests.refresh(asyncio.get_running_loop().time())

    def _add_pool(
        self, name: str, secret: str, handles: Mapping[str, DeploymentHandle[Any]]
    ) -> GatewayPool:
        """The pool, made after the one that it overflows to."""
        if name not in self._pools:
            overflow = self._fleet.pools[name].overflow
            self._pools[name] = GatewayPool(
                self._fleet,
                name,
                Connections(self._text, self._binary, self._session, secret),
                Transport(handles[name], secret),
                self._add_pool(overflow.to, secret, handles) if overflow else None,
                self._explanations,
                RoutingMetrics(self._metrics, name),
                AdmissionMetrics(self._metrics, name),
            )
        return self._pools[name]

    def _app(self) -> FastAPI:
        app = FastAPI(title="Antefix", openapi_url=None, docs_url=None, redoc_url=None)
        for path in INFERENCE_PATHS:
            app.add_api_route(path, self.infer, methods=["POST"])
        app.add_api_route("/v1/models", self.models, methods=["GET"])
        app.add_api_route("/v1/models/{model:path}", self.model, methods=["GET"])
        self._health.add_to(app)
        app.add_api_route("/antefix/status", self.status, methods=["GET"])
        app.add_api_route("/antefix/requests/{request_id}", self.explain, methods=["GET"])
        app.add_api_route("/antefix/decisions", self.decisions, methods=["GET"])
        add_page(app)
        app.add_api_route("/openapi.json", self.openapi, methods=["GET"])
        app.add_api_route("/docs", self.docs, methods=["GET"])
        answer_errors(app)
        return app

    async def infer(self, request: Request) -> Response:
        arrived = asyncio.get_running_loop().time()
        try:
            tenant = self._keys.check(request.headers)
        except ApiError as error:
            self._requests.error(error.code)
            raise
        record = RequestRecord(request_id_of(request), tenant, request.url.path, arrived)
        current_request.set(record.request_id)
        try:
            attempt = await self._attempt(request, record)
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
        return Relay(self._session, attempt, self._watch)

    async def _attempt(self, request: Request, record: RequestRecord) -> EngineAttempt:
        """Read the request, check it, and have it scheduled. Raises ApiError."""
        limits = self._fleet.gateway
        timeout_s = _timeout(request.headers, limits.request_timeout_s)
        deadline = record.arrived + timeout_s
        body = await self._body(request, deadline, timeout_s)
        fields = request_body.parse(body, limits.max_list_items)
        model = request_body.model_of(fields)
        pool = self._pool_of(model)
        record.model, record.pool = model, pool.name
        since_s = asyncio.get_running_loop().time() - record.arrived
        record.trace = self._tracing.request(request.headers, since_s)
        self._watch.begun(record)
        options = options_of(request.headers, fields, limits.priority_of(record.tenant))
        record.priority = options.priority
        engine_request = EngineRequest(
            request_id=record.request_id,
            tenant=record.tenant,
            path=record.path,
            body=body,
            model=model,
            arrived=record.arrived,
            deadline=deadline,
            timeout_s=timeout_s,
            record=record,
        )
        pool_request = await pool.read(engine_request, fields, request.headers, options)
        try:
            async with asyncio.timeout_at(deadline):
                return await pool.schedule(pool_request, request.receive)
        except TimeoutError:
            raise engine_request.deadline_passed() from None

    async def _body(self, request: Request, deadline: float, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout_at(deadline):
                return await request_body.read(
                    request.headers, request.stream(), self._fleet.gateway.max_body_bytes
                )
        except TimeoutError:
            message = (
                f"The body did not arrive within {timeout_s:g} s."
                f" Send it faster, or ask for more time with {TIMEOUT_HEADER}."
            )
            raise ApiError(408, message, code="body_timeout") from None

    async def models(self, request: Request) -> Response:
        self._keys.check(request.headers)
        cards = [await of.models(self._session) for of in self._cards.values()]
        return JSONResponse({"object": "list", "data": [card for of in cards for card in of]})

    async def model(self, request: Request, model: str) -> Response:
        self._keys.check(request.headers)
        cards = await self._cards[self._pool_of(model).name].models(self._session)
        return JSONResponse(next(card for card in cards if card["id"] == model))

    async def status(self, request: Request) -> Response:
        self._keys.check(request.headers)
        return JSONResponse(await fleet_status(self._fleet, self._pools))

    async def explain(self, request: Request, request_id: str) -> Response:
        """Why a request of this key's tenant went where it went."""
        tenant = self._keys.check(request.headers)
        try:
            found = await self._explanations.find(tenant, request_id)
        except REDIS_FAILURES:
            raise _no_redis() from None
        if found is None:
            message = (
                f"No request {request_id[:128]!r} is known. Ask within {EXPLANATION_TTL_S} s of "
                "the answer, by its x-request-id."
            )
            raise ApiError(404, message, code="unknown_request", param="request_id")
        return JSONResponse(found)

    async def decisions(self, request: Request) -> Response:
        """The last explanations, newest first: this key's tenant's, or all for an operator."""
        tenant = self._keys.check(request.headers)
        operator = self._fleet.gateway.is_operator(tenant)
        limit = _limit(request.query_params.get("limit"))
        try:
            found = await self._explanations.latest(None if operator else tenant, limit)
        except REDIS_FAILURES:
            raise _no_redis() from None
        whose = json.dumps({"tenant": tenant, "operator": operator}).encode()
        return Response(
            whose[:-1] + b', "decisions": ' + found + b"}", media_type="application/json"
        )

    async def openapi(self) -> Response:
        first = next(iter(self._cards.values()))
        return JSONResponse(await first.openapi(self._session, INFERENCE_PATHS))

    async def docs(self) -> HTMLResponse:
        return get_swagger_ui_html(openapi_url="/openapi.json", title="Antefix API")

    def _pool_of(self, model: str) -> GatewayPool:
        if pool := self._pool_by_model.get(model):
            return pool
        names = ", ".join(sorted(self._pool_by_model))
        shown = model if len(model) <= 100 else model[:100] + "..."
        message = f"The model {shown!r} does not exist here. These do: {names}."
        raise ApiError(404, message, code="model_not_found", param="model")


def _timeout(headers: Mapping[str, str], limit_s: float) -> float:
    asked = headers.get(TIMEOUT_HEADER)
    if asked is None:
        return limit_s
    try:
        timeout_s = float(asked)
    except ValueError:
        timeout_s = float("nan")
    if not 0 < timeout_s <= limit_s:
        message = (
            f"The header {TIMEOUT_HEADER} is {asked!r}, but it must be a number of seconds above 0"
            f" and at most {limit_s:g}."
        )
        raise ApiError(400, message, code="invalid_timeout", param=TIMEOUT_HEADER)
    return timeout_s


def _limit(asked: str | None) -> int:
    if asked is None:
        return DECISIONS
    limit = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    if not 1 <= limit <= DECISIONS:
        message = (
            f"'limit' is {asked[:100]!r}, but it must be a whole number from 1 to {DECISIONS}."
        )
        raise ApiError(400, message, code="invalid_limit", param="limit")
    return limit


def _no_redis() -> ApiError:
    message = "Explanations are kept in Redis, which does not answer. Try again later."
    return ApiError(503, message, code="no_redis", retry_after=1)
