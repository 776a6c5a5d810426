"""The parts of one replica."""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ray
from ray import serve

from common.loops import Loops
from deployments.engine.adapters.loaded_adapters import AdapterLoading, EngineAdapters, WithAdapters
from deployments.engine.handover.handovers import Handovers
from deployments.engine.handover.other_replicas import OtherReplicas
from deployments.engine.serving.application import application
from deployments.engine.serving.confirming import Confirming
from deployments.engine.serving.lease_text import LeaseText
from deployments.engine.serving.serve_places import ServePlaces
from deployments.engine.serving.sleep_mode import Awake, Sleeper
from deployments.engine.serving.snapshots import QueueReports, ReplicaFacts, ReplicaState, Snapshots
from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.engine.start.local_models import local_models
from deployments.engine.start.start_failures import engine_failures
from deployments.engine.vllm.core_process import without_gc
from deployments.engine.vllm.patches.compile_cache import keep_compiled
from deployments.engine.watchdog.death_report import DeathReport
from deployments.engine.watchdog.witness import Witness
from deployments.fleet.fleet import MetricsSettings
from deployments.fleet.pool import Pool
from deployments.fleet.settings.quality import prove
from deployments.models.model import resolve_model
from deployments.process import node_metrics
from deployments.process.http_server import HttpServer
from deployments.process.serve_log import adopt_logs
from observability.metrics import metric_files
from observability.metrics.metrics import ReplicaMetrics
from router.board.fleet_settings import SettingsReader
from router.board.load import LoadBoard
from router.board.load_reader import LoadReader
from router.index.cached_blocks import CachedBlocks
from router.index.disk_record import DiskRecord, names_key
from router.index.event_stream import EventStream
from router.index.hot_prefixes import HotPrefixes
from router.index.index import PrefixIndex
from router.index.publisher import IndexPublisher
from router.index.segment_keys import SegmentHasher, index_secret
from router.redis.lease_signature import LeaseSigner
from router.redis.redis_client import AsyncRedis, connect
from router.redis.redis_keys import BoardName
from router.redis.signature import Signer

if TYPE_CHECKING:
    from deployments.engine.vllm.adapter import VllmEngine

logger = logging.getLogger("ray.serve")

# Used before the first measured request: the rate of a small model on one CPU core.
DEFAULT_PREFILL_RATE = 500.0
# Seconds for which a stream keeps its place after its gateway's machine has died. To TCP, a gateway
# whose client stops reading looks the same once all buffers are full. A shorter time would
# disconnect clients that only pause.
GATEWAY_GONE_S = 60.0
# A replica that leaves waits this long for each answer of the index.
INDEX_S = 1.0


@dataclass(frozen=True)
class Surroundings:
    """The environment of a replica in Ray. `places`: see `ServePlaces.here`."""

    replica_id: str
    node_id: str
    node_ip: str
    places: ServePlaces | None

    @classmethod
    def here(cls) -> Surroundings:
        """Return the environment of this process, which is a Ray Serve replica."""
        return cls(
            serve.get_replica_context().replica_id.unique_id,
            ray.get_runtime_context().get_node_id(),
            ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
            ServePlaces.here(),
        )


@dataclass(frozen=True)
class Assignment:
    """The pool and the fleet that a replica serves."""

    board: BoardName
    pool: Pool
    secret: str = field(repr=False)
    redis_url: str = field(repr=False)
    metrics: MetricsSettings


@dataclass(frozen=True, eq=False, repr=False)
class ReplicaParts:
    """`url` is the address of `server`. `copies` has the files of adapters. `settings` are the
    current settings of the fleet file, and `board_reader` reads which replicas of the pool are
    active. `disk_record`: None without a disk tier. `handovers`: None without pulls from other
    replicas."""

    here: Surroundings
    url: str
    state: ReplicaState
    witness: Witness
    engine: VllmEngine
    sleeper: Sleeper
    tickets: Tickets
    copies: tempfile.TemporaryDirectory[str]
    server: HttpServer
    events: EventStream
    publisher: IndexPublisher
    disk_record: DiskRecord | None
    handovers: Handovers | None
    board_reader: LoadReader
    settings: SettingsReader
    metrics: ReplicaMetrics
    loops: Loops


async def parts_of(here: Surroundings, given: Assignment) -> ReplicaParts:
    """Start an engine, and create the rest of a replica around it: its server listens, and no loop
    runs yet.

    Raises EngineFailed.
    """
    began, pool, fleet = time.monotonic(), given.pool, given.board.fleet_board
    report = DeathReport.of(given.redis_url, fleet, given.secret, here.replica_id)
    witness = Witness(report=report)
    engine, phases = await _start_engine(here, given, witness.path)
    redis, signer = connect(given.redis_url), Signer(given.secret)
    board, state = LoadBoard(time.monotonic), ReplicaState()
    board_reader = LoadReader(redis, given.board, board, pool.is_scaled, signer)
    sleeper = Sleeper(engine, partial(_takes_traffic, board, here.replica_id))
    reports = QueueReports(engine, sleeper)
    tickets = Tickets(pool.max_ongoing_requests, places=here.places)
    adapters, copies = _adapters(engine, pool)
    answers = Awake(WithAdapters(engine.app, adapters), sleeper)
    segment_tokens = _whole_blocks(pool.segment_tokens, engine.block_size)
    record = await asyncio.to_thread(_disk_record, engine, given.secret)
    cached = _cached_blocks(given, engine, segment_tokens, record)
    events = EventStream(*engine.events_at)
    handovers = _handovers(here, given, engine, state, cached, board_reader)
    if handovers is not None:
        events.listen()
        pulling = time.monotonic()
        await handovers.take_over()
        phases["handover"] = time.monotonic() - pulling
    started_at, startup_s = time.time(), time.monotonic() - began
    adapter_loads = Awake(AdapterLoading(adapters), sleeper)
    app = application(
        engine,
        Confirming(answers, reports.next),
        adapter_loads,
        segment_tokens,
        startup_s,
        Awake(handovers, sleeper) if handovers else None,
    )
    server, url = await _listening(TicketGate(app, tickets, given.secret), here.node_ip)
    metrics = ReplicaMetrics(startup_s, pool.prefill_rate)
    metrics.started(phases)
    snapshots = Snapshots(
        facts=ReplicaFacts(
            replica_id=here.replica_id,
            url=url,
            node_ip=here.node_ip,
            segment_tokens=segment_tokens,
            prefill_rate=pool.prefill_rate or DEFAULT_PREFILL_RATE,
            started_at=started_at,
            startup_s=startup_s,
        ),
        state=state,
        engine=engine,
        reports=reports,
        sleeper=sleeper,
        tickets=tickets,
        adapters=adapters,
        taken_over=handovers.taken if handovers else {},
        metrics=metrics,
        signed=LeaseText(LeaseSigner(signer, given.board)),
    )
    return ReplicaParts(
        here=here,
        url=url,
        state=state,
        witness=witness,
        engine=engine,
        sleeper=sleeper,
        tickets=tickets,
        copies=copies,
        server=server,
        events=events,
        publisher=_publisher(redis, given, engine, snapshots, cached),
        disk_record=record,
        handovers=handovers,
        board_reader=board_reader,
        settings=SettingsReader(redis, given.board.fleet_board, signer),
        metrics=metrics,
        loops=Loops(),
    )


async def _start_engine(
    here: Surroundings, given: Assignment, heartbeat: Path
) -> tuple[VllmEngine, dict[str, float]]:
    """Return the engine, and the seconds of each phase of its start."""
    began, pool = time.monotonic(), given.pool
    keep_compiled(os.environ)
    local = local_models(pool, os.environ)
    if local.is_offline:  # the Hub's client, which vLLM imports, reads it at import
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Only replicas import vLLM, because it would take 500 MB in a gateway.
    with without_gc():
        from deployments.engine.vllm.adapter import VllmEngine
    imported_s = time.monotonic() - began
    adopt_logs("engine")
    # before vLLM creates its metrics
    count = partial(metric_files.write_as_replica, pool=given.board.pool, replica=here.replica_id)
    node_metrics.join(given.board.fleet_name, given.metrics, count)
    model = await asyncio.to_thread(
        resolve_model,
        pool.model,
        lambda fraction, step: logger.info("preparing the model: %s", step),
    )
    if pool.quality is not None:
        await asyncio.to_thread(prove, Path(model), pool.quality)
    when_slower = pool.speculation.when_slower if pool.speculation else "keep"
    async with engine_failures():
        engine = await VllmEngine.start(
            model,
            pool.served_model_name,
            pool.engine_args,
            when_slower,
            folders=local.folders,
            heartbeat=heartbeat,
            resume=pool.resume,
            resume_proof=pool.resume_proof,
            max_media_pixels=pool.max_media_pixels,
            kv_tiers=pool.kv_tiers.model_dump() if pool.kv_tiers else None,
            names_key=names_key(given.secret),
            peer_host=here.node_ip,
        )
    return engine, {"import": imported_s, **engine.start_phases}


def _adapters(
    engine: VllmEngine, pool: Pool
) -> tuple[EngineAdapters, tempfile.TemporaryDirectory[str]]:
    """Return the engine's adapters, and the folder for copies of their files."""
    copies = tempfile.TemporaryDirectory(prefix="antefix-adapters-")
    sources = pool.adapters.sources if pool.adapters else ()
    return EngineAdapters(engine.loras, sources, Path(copies.name)), copies


async def _listening(gate: TicketGate, host: str) -> tuple[HttpServer, str]:
    """Return a server of what is behind the gate, and its URL."""
    server = HttpServer(gate, unacknowledged_s=GATEWAY_GONE_S)
    gate.url = await server.start(host)
    return server, gate.url


def _disk_record(engine: VllmEngine, secret: str) -> DiskRecord | None:
    """Return the record of the engine's disk tier; None without one, or if its folder cannot be
    written."""
    if engine.disk_folder is None:
        return None
    try:
        return DiskRecord(engine.disk_folder, names_key(secret))
    except OSError as error:
        logger.warning("failed to write to the disk tier; its files are not reused: %s", error)
        return None


def _cached_blocks(
    given: Assignment, engine: VllmEngine, segment_tokens: int, record: DiskRecord | None
) -> CachedBlocks:
    pool = given.pool
    return CachedBlocks(
        SegmentHasher(index_secret(given.secret)),
        pool.model,
        pool.revision,
        segment_tokens,
        max_copies=engine.kv_blocks or None,
        tiers=pool.tiers,
        on_written=record.note if record else None,
    )


def _handovers(
    here: Surroundings,
    given: Assignment,
    engine: VllmEngine,
    state: ReplicaState,
    cached: CachedBlocks,
    board_reader: LoadReader,
) -> Handovers | None:
    """Return the handovers of an engine, whose prompts they remember from now on; None if it pulls
    nothing."""
    if not engine.peer:
        return None
    pool, secret = given.pool, given.secret
    segment_tokens = _whole_blocks(pool.segment_tokens, engine.block_size)
    hot = HotPrefixes(
        SegmentHasher(index_secret(secret)), pool.model, pool.revision, segment_tokens
    )
    loop = asyncio.get_running_loop()

    def served(token_ids: list[int], salt: str | None) -> None:
        loop.call_soon(hot.used, token_ids, salt)  # the end of a request does not wait for it

    engine.on_served(served)
    index = PrefixIndex(connect(given.redis_url, decode=False), given.board, INDEX_S)
    others = OtherReplicas(here.replica_id, board_reader, index, secret)
    return Handovers(
        engine, lambda: state.leaving, hot, cached, others, lambda: engine.stats.kv_use
    )


def _publisher(
    redis: AsyncRedis,
    given: Assignment,
    engine: VllmEngine,
    snapshots: Snapshots,
    cached: CachedBlocks,
) -> IndexPublisher:
    publisher: IndexPublisher = IndexPublisher(
        redis,
        given.board,
        cached,
        lambda lease: snapshots.text(lease, publisher.lag_s),
        on_lost=engine.report_reuse,
    )
    engine.on_cache_dropped(publisher.cleared)
    return publisher


def _takes_traffic(board: LoadBoard, replica_id: str) -> bool | None:
    """Return whether the replica is active; None while Redis does not report it."""
    if replica_id in board.loads():
        return True
    return False if replica_id in board.warm() else None


def _whole_blocks(segment_tokens: int, block_size: int) -> int:
    """Return the segment's length as a multiple of the engine's KV block, at least one; 0 without
    segments."""
    return max(1, round(segment_tokens / block_size)) * block_size if block_size else 0
