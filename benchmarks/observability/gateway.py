"""A real gateway without Ray, whose parts that only report can be removed while it runs.

It counts, logs and explains as in production: to memory-mapped files, a rotating log and Redis. A
gateway has no switch for these parts, so this module replaces them with objects that do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from logging.handlers import RotatingFileHandler
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.stand import lone_gateway
from benchmarks.stand.child_process import hear, say
from benchmarks.stand.played_engine import ENGINES
from deployments.fleet.fleet import Fleet
from deployments.gateway.answer.answer_to_client import AnswerToClient
from deployments.gateway.attempt import engine_requests
from deployments.gateway.gateway import Gateway
from deployments.gateway.parts import Secrets
from deployments.gateway.record import request_log, request_watch
from deployments.wire.headers import RESUMABLE_HEADER

METRICS, EXPLANATIONS, LOG, TOKENS = PARTS = ("metrics", "explanations", "log", "tokens")
READY_S = 30.0
# Ray Serve's.
LOG_BYTES, LOG_FILES = 100_000_000, 5


@dataclass(frozen=True)
class ObservedGatewaySettings:
    """`keys`: API key to tenant. Its log and its metrics go to `folder`."""

    fleet: Fleet
    keys: dict[str, str] = field(repr=False)
    secret: str = field(repr=False)
    redis_url: str = field(repr=False)
    folder: Path


class _Nothing:
    """In place of an object that only reports."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*args: object, **kwargs: object) -> None:
    pass


class Parts:
    """The parts of one gateway that only report."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.pool = lone_gateway.pool_of(gateway)
        self._watch = gateway.parts.watch
        self._of_pool = self.pool.parts
        self._requests = self._watch._metrics
        self._record_time = AnswerToClient._record_time

    def leave(self, parts: frozenset[str]) -> None:
        """Keep only these, from the next request on."""
        nothing: Any = _Nothing()
        pool, watch, reporter = self.pool, self._watch, self.pool.reporter
        told = METRICS in parts
        routing = self._of_pool.routing_metrics if told else nothing
        admission = self._of_pool.admission_metrics if told else nothing
        pool.reader._metrics = reporter._metrics = routing
        pool.parts = replace(self._of_pool, routing_metrics=routing, admission_metrics=admission)
        watch._metrics = self._requests if told else nothing
        _replace(AnswerToClient, "_record_time", self._record_time if told else _nothing)
        # without it, engines do not report their tokens
        asks = RESUMABLE_HEADER if TOKENS in parts else "x-not-asked"
        _replace(engine_requests, "RESUMABLE_HEADER", asks)
        log = request_log.log_request if LOG in parts else _nothing
        _replace(request_watch, "log_request", log)
        learns = parts & {METRICS, EXPLANATIONS}
        _replace(reporter, "answered", None if learns else _nothing)
        explains = EXPLANATIONS in parts
        for name in ("begun", "ended"):
            _replace(self._gateway.parts.explanations, name, None if explains else _nothing)
        _replace(reporter, "decided", None if explains else _tell_nothing)
        _replace(self._gateway, "refresh_metrics", None if told else _nothing)


def _replace(where: Any, name: str, by: object) -> None:
    """`by` None: restore what the class has."""
    if by is None:
        vars(where).pop(name, None)
    else:
        setattr(where, name, by)


def _tell_nothing(*args: object) -> dict[str, Any]:
    return {"prompt_tokens": {}}


async def gateway(settings: ObservedGatewaySettings, pipe: Connection) -> None:
    """Serve until the parent is gone.

    The parent sends sets of parts. For each, report the CPU seconds used so far, then keep only it.
    """
    os.environ["ANTEFIX_METRICS_FOLDER"] = str(settings.folder / "metrics")
    log = RotatingFileHandler(settings.folder / "gateway.log", "a", LOG_BYTES, LOG_FILES)
    logging.getLogger("ray.serve").handlers = [log]
    secrets = Secrets(settings.keys, settings.secret, settings.redis_url)
    async with lone_gateway.serving(settings.fleet, secrets, ENGINES, READY_S) as here:
        parts = Parts(here)
        say(pipe, "ready")
        with contextlib.suppress(EOFError):
            while True:
                left = await hear(pipe)
                await _until_told(here)
                say(pipe, time.process_time())
                parts.leave(left)


async def _until_told(here: Gateway) -> None:
    """Wait until the explanations are in Redis: that is part of their cost."""
    while len(here.parts.explanations._waiting):  # noqa: ASYNC110  # no event reports it
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
