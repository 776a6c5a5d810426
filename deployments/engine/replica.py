"""One replica: a vLLM engine behind its own HTTP server, inside a Ray Serve actor.

The replica publishes its address as Serve replica metadata, and in Redis its load and which
prefixes its engine holds. When the engine's process dies the replica leaves the board and exits
at once: Ray Serve then replaces it without waiting for three failed health checks. A witness
(`witness.py`) finds an engine that hangs: the replica leaves routing while it is suspected, and the
witness ends both when it is sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from common.failure import gist
from common.loops import Loops, failures, forever
from deployments.engine import deaths, prestart
from deployments.engine.confirming import Confirming
from deployments.engine.deaths import Deaths
from deployments.engine.hang import EngineHealth
from deployments.engine.held_answers import HeldAnswers
from deployments.engine.lease_text import LeaseText
from deployments.engine.serve_places import ServePlaces
from deployments.engine.sleep_mode import Awake, Sleeper
from deployments.engine.tickets import TicketGate, Tickets
from deployments.engine.vllm.core_process import without_gc
from deployments.engine.witness import Witness
from deployments.fleet.fleet import Fleet, MetricsSettings
from deployments.fleet.pool import Pool
from deployments.fleet.settings.quality import prove
from deployments.models.model import resolve_model
from deployments.process import node_drain, node_metrics
from deployments.process.http_server import HttpServer
from deployments.process.serve_log import adopt_logs, ray_logs, set_log_level
from deployments.wire.engine_facts import FACTS_PATH, EngineFacts
from deployments.wire.headers import RENDERER_PATH
from observability import metric_files
from observability.metrics import ReplicaMetrics
from router.cached_blocks import CachedBlocks
from router.event_stream import EventStream
from router.fleet_settings import SettingsReader
from router.lease_signature import LeaseSigner
from router.load import LoadBoard, LoadReport, ReplicaLoad, Speculation
from router.load_reader import LoadReader
from router.publisher import IndexPublisher, Lease
from router.redis_client import REDIS_FAILURES, connect
from router.redis_keys import BoardName
from router.segment_keys import SegmentHasher, index_secret
from router.signature import Signer

logger = logging.getLogger("ray.serve")

# Before the first request has been measured: what a small model does on one CPU core.
DEFAULT_PREFILL_RATE = 500.0
WATCH_PERIOD_S = 0.25
PROBE_PERIOD_S = 1.0
# Whether it is promoted, a replica need not know sooner: a request tells it, too.
BOARD_PERIOD_S = 1.0
SETTINGS_PERIOD_S = 2.0
# Until all gateways have read that a replica listens no more: it tells, and they read, ten times a
# second, and a request that was placed just before is on its way.
HEARD_S = 0.5
# Ray Serve is not told of a replica before gateways can know it, but without Redis they cannot.
PUBLISHED_WITHIN_S = 5.0
# A stream to a gateway whose machine is gone keeps its place here so long. TCP cannot tell that
# from a gateway whose client has stopped reading once every buffer between them is full: shorter
# would cut clients that only pause.
GATEWAY_GONE_S = 60.0


class EngineFailed(Exception):
    """Why the engine did not start, in one line, from its log where vLLM says "see above": Ray
    Serve's status is all that a cluster shows of it.
    """


@contextlib.asynccontextmanager
async def engine_failures() -> AsyncIterator[None]:
    """Raises EngineFailed for whatever vLLM raises."""
    try:
        yield
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise EngineFailed(await asyncio.to_thread(gist, said, ray_logs())) from error


class EngineReplica:
    """Ray Serve deployment class; `hold` is the one method gateways call."""

    # None until its start is due
    _deaths: Deaths | None = None

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: BoardName, pool: Pool, secret: str, redis_url: str, metrics: MetricsSettings
    ) -> None:
        had_waited = prestart.begin()
        node = ray.get_runtime_context().get_node_id()
        self._deaths = Deaths(deaths.folder_of(node, board))
        await self._deaths.wait()
        began = time.monotonic()
        self._witness, self._health = Witness(), EngineHealth.HEALTHY
        # vLLM is imported by replicas alone: a gateway that did would take 500 MB more.
        with without_gc():
            from deployments.engine.vllm.adapter import VllmEngine
        imported_s = time.monotonic() - began

        adopt_logs("engine")
        self._prefill_rate_prior = pool.prefill_rate or DEFAULT_PREFILL_RATE
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        fleet_name, pool_name = board.fleet_name, board.pool
        # before vLLM makes its metrics
        count = partial(metric_files.write_as_replica, pool=pool_name, replica=self._replica_id)
        node_metrics.join(fleet_name, metrics, count)
        self._node_ip = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        model = await asyncio.to_thread(
            resolve_model, pool.model, lambda fraction, step: logger.info("model: %s", step)
        )
        if pool.quality is not None:
            await asyncio.to_thread(prove, Path(model), pool.quality)
        when_slower = pool.speculation.when_slower if pool.speculation else "keep"
        async with engine_failures():
            self._engine = await VllmEngine.start(
                model, pool.served_model_name, pool.engine_args, when_slower, self._witness.path
            )
        redis = connect(redis_url)
        self._board = LoadBoard(time.monotonic)
        signer = Signer(secret)
        self._board_reader = LoadReader(redis, board, self._board, pool.is_scaled, signer)
        self._sleeper = Sleeper(self._engine, self._takes_traffic)
        self._segment_tokens = _whole_blocks(pool.segment_tokens, self._engine.block_size)
        self._places = ServePlaces.here()
        self._tickets = Tickets(pool.max_ongoing_requests, places=self._places)
        app = Awake(self._engine.app, self._sleeper)
        self._held = HeldAnswers(Confirming(app, self._report))
        gate = TicketGate(self._app(), self._tickets, secret)
        self._server = HttpServer(gate, unacknowledged_s=GATEWAY_GONE_S)
        self._url = gate.url = await self._server.start(self._node_ip)
        self._lease_text = LeaseText(LeaseSigner(signer, board))
        self._sequence = 0
        self._leaving = self._closed = False
        self._events = EventStream(*self._engine.events_at)
        hasher = SegmentHasher(index_secret(secret))
        self._publisher = IndexPublisher(
            redis,
            board,
            CachedBlocks(
                hasher,
                pool.model,
                pool.revision,
                self._segment_tokens,
                max_copies=self._engine.kv_blocks or None,
            ),
            self._snapshot,
            on_lost=self._engine.report_reuse,
        )
        self._engine.on_cache_dropped(self._publisher.cleared)
        self._started_at, self._startup_s = time.time(), time.monotonic() - began
        self._known_by = asyncio.get_running_loop().time() + PUBLISHED_WITHIN_S
        self._metrics = ReplicaMetrics(self._startup_s, pool.prefill_rate)
        phases = {"import": imported_s, **self._engine.start_phases}
        self._metrics.started(phases, had_waited)
        self._publisher.start(self._events.batches)
        self._loops = Loops()
        self._watch = self._loops.start(
            "engine_watch",
            forever(
                "engine_watch",
                self._watch_engine,
                WATCH_PERIOD_S,
                fails="whether the engine lives is not known",
                logger=logger,
            ),
        )
        self._loops.start("engine_probe", self._probe())
        settings = SettingsReader(redis, board.fleet_board, signer)
        self._loops.start("settings", self._follow_settings(settings, pool_name))
        if self._engine.can_sleep:
            self._loops.start("load_board", self._board_reader.run(lambda: BOARD_PERIOD_S))
            self._loops.start("sleep_mode", self._sleeper.run())
        if prestart.KEY in os.environ:
            self._loops.start("prestart", prestart.keep())
        self._deaths.alive()
        self._loops.start("engine_deaths", self._deaths.follow(self._metrics.deaths))
        drained = node_drain.follow(node, self._leave, lambda: self._tickets.running)
        self._loops.start("node_drain", drained)

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"url": self._url}

    async def hold(self, ticket: str) -> None:
        await self._tickets.hold(ticket)

    async def check_health(self) -> None:
        # Ray Serve takes the next engine of an update away once it has asked this one.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._known_by):
                await self._publisher.published.wait()
        await self._engine.check_health()
        if self._sleeper.failing:
            raise RuntimeError("the engine does not wake up")
        if ended := [*self._loops.ended, *self._publisher.ended]:
            raise RuntimeError(f"the background loop {ended[0]} has ended")

    def _app(self) -> Starlette:
        return Starlette(
            routes=[
                Route(RENDERER_PATH, self._renderer),
                Route(FACTS_PATH, self._facts),
                Mount("/", self._held),
            ]
        )

    async def _renderer(self, request: Request) -> Response:
        """How a gateway gets the tokens that this engine would."""
        facts = self._engine.renderer
        if facts is None:
            return JSONResponse({"error": "only the engine can render"}, status_code=404)
        return Response(facts.to_json(), media_type="application/json")

    async def _facts(self, request: Request) -> Response:
        """What `antefix calibrate` cannot measure from outside."""
        engine = self._engine
        facts = EngineFacts(
            step_tokens=engine.max_step_tokens,
            sequences=engine.max_sequences,
            block_tokens=engine.block_size or self._segment_tokens or 16,
            kv_capacity_tokens=engine.kv_capacity_tokens,
            max_model_len=engine.max_model_len,
            startup_s=self._startup_s,
            dtype=engine.dtype,
        )
        return Response(facts.to_json(), media_type="application/json")

    def _report(self) -> LoadReport:
        self._sequence += 1
        waiting, running, queued_prefill_tokens = self._engine.queue()
        waiting += self._sleeper.waiting
        return LoadReport(self._sequence, waiting, running, queued_prefill_tokens)

    async def _follow_settings(self, settings: SettingsReader, pool: str) -> None:
        """What a running engine has to know of the fleet file (`router.fleet_settings`)."""

        async def follow() -> None:
            if (found := await settings.newer()) is not None:
                self._take_settings(found.fleet, pool)

        await forever(
            "settings",
            follow,
            SETTINGS_PERIOD_S,
            fails="the settings of the fleet are as they last were",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    def _take_settings(self, text: str, pool: str) -> None:
        try:
            fleet = Fleet.model_validate_json(text)
        except ValueError as error:  # by another release
            logger.warning("the settings of the fleet are not readable: %s", error)
            return
        set_log_level(fleet.log_level)
        if settings := fleet.pools.get(pool):
            self._board_reader.scaled = settings.is_scaled

    async def _leave(self, after_s: float) -> None:
        self._leaving = True

    def _takes_traffic(self) -> bool | None:
        """None while Redis does not tell."""
        if self._replica_id in self._board.loads():
            return True
        return False if self._replica_id in self._board.warm() else None

    def _snapshot(self, lease: Lease) -> str:
        stats, renderer, queue = self._engine.stats, self._engine.renderer, self._report()
        busy = queue.waiting + queue.running > 0
        step_s, sequence_s = stats.step_time.line()
        self._metrics.queue(queue.waiting, queue.running, queue.queued_prefill_tokens)
        self._metrics.index(self._publisher.lag_s, lease.synced)
        self._metrics.loops(failures)
        grammars = self._engine.grammars
        self._metrics.grammars(grammars.longest_wait_s, grammars.results)
        self._metrics.prefill(stats.prefill_rate)
        known = self._engine.speculation()
        if known:
            self._metrics.speculation(**msgspec.structs.asdict(known))
        load = ReplicaLoad(
            replica_id=self._replica_id,
            slot=lease.slot,
            incarnation=lease.incarnation,
            url=self._url,
            node_ip=self._node_ip,
            waiting=queue.waiting,
            running=queue.running,
            queued_prefill_tokens=queue.queued_prefill_tokens,
            # vLLM reports while it steps: an idle engine's last report is of a busy one
            kv_use=stats.kv_use if busy else 0.0,
            kv_capacity_tokens=self._engine.kv_capacity_tokens,
            prefill_rate=stats.prefill_rate or self._prefill_rate_prior,
            inter_token_latency=stats.inter_token_latency if queue.running else 0.0,
            segment_tokens=self._segment_tokens,
            renderer=renderer.digest if renderer else "",
            synced=lease.synced,
            sequence=queue.sequence,
            arrived=self._tickets.lately_arrived(),
            started_at=self._started_at,
            startup_s=self._startup_s,
            prefill_learned=stats.prefill_rate is not None,
            step_s=step_s,
            sequence_s=sequence_s,
            max_sequences=self._engine.max_sequences,
            engines_at_once=self._engine.engines_at_once,
            decode_s=stats.decode_s,
            max_model_len=self._engine.max_model_len,
            output_tokens=stats.output_tokens,
            asleep=self._sleeper.asleep,
            leaving=self._leaving,
            closed=self._closed,
            suspect=self._health is not EngineHealth.HEALTHY,
            speculation=Speculation(known.on, known.tokens_per_pass, known.speedup)
            if known
            else None,
            tells_serve=self._tickets.tells_serve,
            grammar_wait_s=grammars.stuck_s,
            dtype=self._engine.dtype,
        )
        return self._lease_text.of(load)

    async def _probe(self) -> None:
        async def ask() -> None:
            with self._witness.probing():
                await self._engine.probe()

        fails = "whether the engine answers is not known"
        await forever("engine_probe", ask, PROBE_PERIOD_S, fails=fails, logger=logger)

    async def _watch_engine(self) -> None:
        if self._places is not None and self._places.is_stopping:
            self._leaving = True
        if self._engine.dead:
            await self._leave_at_once("died", "died")
        before, (self._health, why) = self._health, self._witness.verdict
        if self._health is EngineHealth.HUNG:
            self._metrics.hung()
            await self._leave_at_once("hung", f"hangs: {why}")
        if self._health is not before:
            if self._health is EngineHealth.SUSPECT:
                self._metrics.suspected()
            logger.warning("the engine is %s", f"suspect: {why}" if why else "healthy again")
        self._witness.beat()

    async def _leave_at_once(self, cause: deaths.Cause, why: str) -> None:
        logger.error("leaving: the engine of replica %s %s", self._replica_id, why)
        if self._deaths is not None:
            self._deaths.add(cause)
        try:
            await self._publisher.stop()
        finally:
            os._exit(1)

    async def __del__(self) -> None:
        if not hasattr(self, "_watch"):  # Serve calls this on a failed __init__ too
            return
        if self._deaths is not None:
            self._deaths.left()
        await self._loops.stop(self._watch)
        self._leaving = self._closed = True
        await asyncio.sleep(HEARD_S)
        self._held.close()
        await self._server.drain()
        await self._publisher.stop()  # whoever left the board before was taken for dead
        await self._loops.stop()  # not before: a request may have waited for one's end
        self._witness.stop()
        self._events.close()
        self._engine.stop()


def _whole_blocks(segment_tokens: int, block_size: int) -> int:
    """The segment's length as a multiple of the engine's KV block, at least one; 0 without."""
    return max(1, round(segment_tokens / block_size)) * block_size if block_size else 0
