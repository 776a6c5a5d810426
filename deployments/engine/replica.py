"""One replica: a vLLM engine behind its own HTTP server, inside a Ray Serve actor.

The replica publishes its address as Serve replica metadata, and in Redis its load and the prefixes
in its engine's cache. When the engine's process dies, the replica leaves the board and exits at
once: Ray Serve then replaces it without waiting for three failed health checks. A watchdog
(`witness.py`) finds a hung engine: the replica leaves routing while it is suspected, and the
watchdog stops both when it is certain, if the pool's `hung_engine` allows it. `parts` has the parts
of the replica.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from typing import Any, Literal

import ray

from common.loops import forever
from deployments.engine.handover.handovers import WITHIN_S
from deployments.engine.replica_parts import Assignment, ReplicaParts, Surroundings, parts_of
from deployments.engine.start import deaths
from deployments.engine.start.deaths import Deaths
from deployments.engine.watchdog.hang import EngineHealth
from deployments.fleet.fleet import Fleet, MetricsSettings
from deployments.fleet.pool import Pool
from deployments.fleet.settings.hung_engine import is_restarted
from deployments.process import node_drain
from deployments.process.serve_log import set_log_level
from router.index.disk_record import DiskContent, DiskRecord
from router.redis.redis_client import REDIS_FAILURES
from router.redis.redis_keys import BoardName

logger = logging.getLogger("ray.serve")

WATCH_PERIOD_S = 0.25
PROBE_PERIOD_S = 1.0
# On shared cores, gateways have priority: they have little work, and every token waits for it.
NICENESS = 5
# A replica may learn late whether it is promoted, because requests carry that too.
BOARD_PERIOD_S = 1.0
SETTINGS_PERIOD_S = 2.0
# Files that other engines wrote, or removed, are known after this time.
DISK_RECORD_PERIOD_S = 30.0
# Until all gateways have read that a replica no longer listens: it reports, and they read, ten
# times a second, and a request that was placed just before is still to arrive.
HEARD_S = 0.5
# Ray Serve learns of a replica only after gateways can know it, which is impossible without Redis.
PUBLISHED_WITHIN_S = 5.0


class EngineReplica:
    """Ray Serve deployment class; `hold` is the one method that gateways call."""

    parts: ReplicaParts
    _handing_over: asyncio.Task[None] | None = None
    # None until its start is due
    _deaths: Deaths | None = None

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: BoardName, pool: Pool, secret: str, redis_url: str, metrics: MetricsSettings
    ) -> None:
        yield_to_gateways()
        given = Assignment(board, pool, secret, redis_url, metrics)
        await self.begin(Surroundings.here(), given)

    async def begin(self, here: Surroundings, given: Assignment) -> None:
        """Start the engine, after its delay, and its watchers; see `parts_of`."""
        self._deaths = Deaths(deaths.folder_of(here.node_id, given.board))
        await self._deaths.wait()
        self.parts = await parts_of(here, given)
        self._follow_pool(given.pool)
        self._known_by = asyncio.get_running_loop().time() + PUBLISHED_WITHIN_S
        if self.parts.disk_record is not None:
            with contextlib.suppress(OSError):  # the loop reports it
                await self._read_disk_record(self.parts.disk_record)
        self.parts.publisher.start(self.parts.events.batches)
        self._start_loops(given.board.pool, self._deaths)

    def _start_loops(self, pool: str, known_deaths: Deaths) -> None:
        loops, parts = self.parts.loops, self.parts
        self._watch = loops.start(
            "engine_watch",
            forever(
                "engine_watch",
                self._watch_engine,
                WATCH_PERIOD_S,
                fails="failed to watch the engine",
                logger=logger,
            ),
        )
        if (record := parts.disk_record) is not None:
            loops.start(
                "disk_record",
                forever(
                    "disk_record",
                    partial(self._read_disk_record, record),
                    DISK_RECORD_PERIOD_S,
                    fails="failed to read which files the disk tier has",
                    logger=logger,
                ),
            )
        loops.start("engine_probe", self._probe())
        loops.start("settings", self.follow_settings(pool))
        if parts.engine.can_sleep:
            loops.start("load_board", parts.board_reader.run(lambda: BOARD_PERIOD_S))
            loops.start("sleep_mode", parts.sleeper.run())
        known_deaths.alive()
        loops.start("engine_deaths", known_deaths.follow(parts.metrics.deaths))
        if ray.is_initialized():
            drained = node_drain.follow(parts.here.node_id, self._leave, partial(unfinished, parts))
            loops.start("node_drain", drained)

    async def _read_disk_record(self, record: DiskRecord) -> None:
        """Report to the index which segments the engine can read from files."""

        def read() -> DiskContent:
            record.flush()
            return record.read()

        self.parts.publisher.readable(*await asyncio.to_thread(read))

    def record_replica_metadata(self) -> dict[str, Any]:
        return {"url": self.parts.url}

    async def hold(self, ticket: str) -> None:
        await self.parts.tickets.hold(ticket)

    async def check_health(self) -> None:
        await check_health(self.parts, self._known_by)

    async def follow_settings(self, pool: str) -> None:
        """Apply the settings of the fleet file that a running engine needs
        (`router.board.fleet_settings`)."""

        async def follow() -> None:
            if (found := await self.parts.settings.newer()) is not None:
                self._take_settings(found.fleet, pool)

        await forever(
            "settings",
            follow,
            SETTINGS_PERIOD_S,
            fails="failed to read the fleet's settings; keeping the last ones",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    def _take_settings(self, text: str, pool: str) -> None:
        try:
            fleet = Fleet.model_validate_json(text)
        except ValueError as error:  # another release wrote it
            logger.warning("failed to parse the fleet's settings; keeping the last ones: %s", error)
            return
        set_log_level(fleet.log_level)
        if settings := fleet.pools.get(pool):
            self._follow_pool(settings)

    def _follow_pool(self, settings: Pool) -> None:
        self.parts.board_reader.scaled = settings.is_scaled
        on_cpu = self.parts.engine.on_cpu
        self.parts.witness.ends_hung = is_restarted(settings.hung_engine, on_cpu)

    async def _leave(self, after_s: float) -> None:
        self._begin_to_leave()

    def _begin_to_leave(self) -> None:
        """Get no more requests, and hand over hot prefixes while those that run end."""
        parts = self.parts
        parts.state.leaving = True
        if parts.handovers is not None and self._handing_over is None:
            self._handing_over = asyncio.create_task(parts.handovers.hand_over())

    async def _probe(self) -> None:
        async def ask() -> None:
            with self.parts.witness.probing():
                await self.parts.engine.probe()

        fails = "failed to probe the engine"
        await forever("engine_probe", ask, PROBE_PERIOD_S, fails=fails, logger=logger)

    async def _watch_engine(self) -> None:
        state, witness, metrics = self.parts.state, self.parts.witness, self.parts.metrics
        places = self.parts.here.places
        if places is not None and places.is_stopping:
            self._begin_to_leave()
        before, (state.health, why) = state.health, witness.verdict
        cause = cause_to_leave(self.parts.engine.dead, state.health, witness.ends_hung)
        if cause == "died":
            await self._leave_at_once(cause, "died")
        if cause == "hung":
            metrics.hung()
            await self._leave_at_once(cause, f"hangs: {why}")
        if state.health is not before:
            metrics.suspect(state.is_suspect)
            if why:
                logger.warning("the engine is %s: %s", state.health.name.lower(), why)
            else:
                logger.info("the engine is healthy again")
        witness.beat()

    async def _leave_at_once(self, cause: deaths.Cause, why: str) -> None:
        logger.error("ending replica %s: its engine %s", self.parts.here.replica_id, why)
        if self._deaths is not None:
            self._deaths.add(cause)
        try:
            await self.parts.publisher.stop()
        finally:
            os._exit(1)

    async def __del__(self) -> None:
        if not hasattr(self, "_watch"):  # Serve calls this on a failed __init__ too
            return
        if self._deaths is not None:
            self._deaths.left()
        parts = self.parts
        await parts.loops.stop(self._watch)
        self._begin_to_leave()
        parts.state.closed = True
        await asyncio.sleep(HEARD_S)
        await parts.server.drain()
        if self._handing_over is not None:
            await self._handing_over
        await parts.publisher.stop()  # a replica that leaves the board earlier seems dead
        await parts.loops.stop()  # not earlier: a request may wait for the end of one
        parts.witness.stop()
        parts.events.close()
        if parts.disk_record is not None:
            await asyncio.to_thread(parts.disk_record.close)
        parts.engine.stop()
        parts.copies.cleanup()


def unfinished(parts: ReplicaParts) -> int:
    """Return the number of requests and handovers that a drain of the node waits for."""
    return parts.tickets.running + (parts.handovers.running if parts.handovers else 0)


def leaving_s(pool: Pool) -> float:
    """Return the most seconds that a replica takes to leave, except for its requests."""
    hands_over = pool.kv_tiers is not None and pool.kv_tiers.peers
    return HEARD_S + (WITHIN_S if hands_over else 0.0)


def yield_to_gateways() -> None:
    """Lower the priority of this thread, and of the threads and processes that it starts."""
    os.nice(NICENESS)


def cause_to_leave(
    is_dead: bool, health: EngineHealth, ends_hung: bool
) -> Literal["died", "hung"] | None:
    """Return why a replica exits at once; None: it does not.

    `ends_hung`: its pool stops hung engines (`is_restarted`).
    """
    if is_dead:
        return "died"
    return "hung" if ends_hung and health is EngineHealth.HUNG else None


async def check_health(parts: ReplicaParts, known_by: float) -> None:
    """Raise if the replica is unhealthy.

    `known_by`: until then, on the loop's clock, it waits for the replica to be on the board.
    """
    # An update removes the next engine once Ray Serve has checked this one.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(known_by):
            await parts.publisher.published.wait()
    await parts.engine.check_health()
    if parts.sleeper.failing:
        raise RuntimeError("the engine does not wake up")
    if ended := [*parts.loops.ended, *parts.publisher.ended]:
        raise RuntimeError(f"the background loop {ended[0]} has ended")
