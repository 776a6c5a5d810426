"""One replica: a vLLM engine behind its own HTTP server, inside a Ray Serve actor.

The replica publishes its address as Serve replica metadata and its load in Redis. When the
engine's process dies the replica leaves the board and exits at once: Ray Serve then replaces
it without waiting for three failed health checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

import ray
from ray import serve

from deployments.fleet import Pool
from deployments.http_server import HttpServer
from deployments.local.model import resolve_model
from deployments.tickets import TicketGate, Tickets
from router.load import LoadPublisher, ReplicaLoad
from router.redis_client import connect

logger = logging.getLogger("ray.serve")

# Before the first request has been measured: what a small model does on one CPU core.
DEFAULT_PREFILL_RATE = 500.0
WATCH_PERIOD_S = 0.25
# Where they share cores, gateways go first: they have little to do and every token waits for it.
NICENESS = 5


class EngineReplica:
    """Ray Serve deployment class; `hold` is the one method gateways call."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: str, pool: Pool, secret: str, redis_url: str
    ) -> None:
        # vLLM is imported by replicas alone: a gateway that did would take 500 MB more.
        from deployments.vllm_adapter import VllmEngine

        os.nice(NICENESS)
        self._prefill_rate_prior = pool.prefill_rate or DEFAULT_PREFILL_RATE
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._node_ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        model = await asyncio.to_thread(
            resolve_model, pool.model, lambda fraction, step: logger.info("model: %s", step)
        )
        self._engine = await VllmEngine.start(model, pool.served_model_name, pool.engine_args)
        self._tickets = Tickets(pool.max_ongoing_requests)
        self._server = HttpServer(TicketGate(self._engine.app, self._tickets, secret))
        self._url = await self._server.start(self._node_ip)
        self._publisher = LoadPublisher(connect(redis_url), board, self._load)
        self._publisher.start()
        self._watch = asyncio.create_task(self._leave_when_dead())

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"url": self._url}

    async def hold(self, ticket: str) -> None:
        await self._tickets.hold(ticket)

    async def check_health(self) -> None:
        await self._engine.check_health()

    def _load(self) -> ReplicaLoad:
        stats = self._engine.stats
        waiting, running, queued_prefill_tokens = self._engine.queue()
        return ReplicaLoad(
            replica_id=self._replica_id,
            waiting=waiting,
            running=running,
            queued_prefill_tokens=queued_prefill_tokens,
            # vLLM reports while it steps: an idle engine's last report is of a busy one
            kv_use=stats.kv_use if waiting + running else 0.0,
            prefill_rate=stats.prefill_rate or self._prefill_rate_prior,
            inter_token_latency=stats.inter_token_latency if running else 0.0,
            url=self._url,
            node_ip=self._node_ip,
        )

    async def _leave_when_dead(self) -> None:
        while not self._engine.dead:  # noqa: ASYNC110  # vLLM has no event for it
            await asyncio.sleep(WATCH_PERIOD_S)
        logger.error("the engine of replica %s died; leaving", self._replica_id)
        await self._publisher.stop()
        os._exit(1)

    async def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # Serve calls this on a failed __init__ too
            self._watch.cancel()
            await self._publisher.stop()
            await self._server.drain()
            self._engine.stop()
