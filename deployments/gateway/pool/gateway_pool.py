"""One pool of engines in one gateway: its parts, and the loops that keep them up to date.

`scheduling` is a request's path through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from autoscaling.admission.pool_scheduler import PoolScheduler
from common.loops import forever
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.gateway.attempt.prefill import may_be_pulled, prompt_of
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.pool.overflow_contract import refusal_of
from deployments.gateway.pool.pool_parts import PoolParts, settings_of, startup_of
from deployments.gateway.pool.prompt_reader import PromptReader, context_lengths, guess
from deployments.gateway.pool.start_watch import StartWatch
from deployments.gateway.pool.turns import TURN_PERIOD_S
from deployments.gateway.record.pool_reporter import PoolReporter
from router.board.load_reader import IDLE_PERIOD_S, READ_PERIOD_S
from router.board.pool_demand import Decided
from router.board.pool_feeds import PoolFeeds
from router.redis.redis_client import REDIS_FAILURES

logger = logging.getLogger("ray.serve")

DECIDED_PERIOD_S = 1.0
# The period of reading loads while answers are open: their engine may be lost, or leave.
BUSY_PERIOD_S = 0.25


class GatewayPool:
    """One pool in one gateway.

    Callers may read `settings` and `decided`, the autoscaler's last decision. `overflow`: the pool
    for requests that this one cannot serve in time, and `prefill`: the pool that may compute its
    prompts; `change` sets them. `next_outage` is done while no replica is up.
    """

    def __init__(self, fleet: Fleet, name: str, parts: PoolParts) -> None:
        self.name = name
        self.parts = parts
        self.settings: Pool = fleet.pools[name]
        self.overflow: GatewayPool | None = None
        self.prefill: GatewayPool | None = None
        self.decided: Decided | None = None
        self.next_outage: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._refreshed_at = asyncio.get_running_loop().time()

    @property
    def scheduler(self) -> PoolScheduler:
        return self.parts.scheduler

    @property
    def feeds(self) -> PoolFeeds:
        return self.parts.feeds

    @property
    def reader(self) -> PromptReader:
        return self.parts.reader

    @property
    def reporter(self) -> PoolReporter:
        return self.parts.reporter

    @property
    def starts(self) -> StartWatch:
        return self.parts.starts

    @property
    def transport(self) -> Transport:
        return self.parts.transport

    def change(
        self, fleet: Fleet, overflow: GatewayPool | None, prefill: GatewayPool | None
    ) -> None:
        """Apply the fleet's settings from now on. Open requests keep the earlier ones."""
        self.settings = settings = fleet.pools[self.name]
        self.overflow, self.prefill = overflow, prefill
        elsewhere = overflow.scheduler if overflow else None
        self.scheduler.change(settings_of(fleet, self.name), elsewhere)
        self.feeds.loads.scaled = settings.is_scaled
        self.feeds.index.budget_s = fleet.redis.lookup_budget_ms / 1000
        self.reporter.slos = settings.slo.by_class()
        self.reader.pool = settings
        if (tiers := settings.kv_tiers) is not None:
            self.parts.routing_metrics.begin_tiers(tiers.peers, prefill is not None)
        self.parts.moves.after_s = fleet.gateway.move_after_s
        self.starts.expected_s = startup_of(settings)

    async def run(self) -> None:
        """Follow loads, the renderer and the autoscaler, and give turns, until cancelled."""
        await asyncio.gather(
            self.feeds.run(self._loads_needed_every_s),
            self.reader.renderer.run(self.feeds.loads.next_reading),
            self.parts.tell_demand(lambda: self.settings.is_scaled),
            self.parts.moves.run(),
            forever(
                "decided",
                self._follow_autoscaler,
                DECIDED_PERIOD_S,
                fails=f"failed to read the autoscaler's decisions for {self.name}",
                logger=logger,
                outages=REDIS_FAILURES,
            ),
            forever(
                "replica_starts",
                self._look_for_replicas,
                fails=f"failed to look for outages of {self.name}",
                logger=logger,
            ),
            forever(
                "turns",
                self._give_turns,
                fails=f"failed to give queued requests of {self.name} their turns",
                logger=logger,
            ),
        )

    @property
    def model(self) -> str:
        """The engines' name of their model."""
        return self.settings.served_model_name

    @property
    def overflow_model(self) -> str | None:
        """The model of the overflow pool; None if there is none."""
        return self.overflow.model if self.overflow else None

    @property
    def _is_wanted(self) -> bool:
        """Whether a replica should be up. A pool that is scaled to zero needs none."""
        if self.decided is not None:
            return self.decided.target > 0
        scaled = self.settings.autoscaling
        return scaled is None or scaled.min_replicas > 0

    @property
    def context_lengths(self) -> list[int]:
        """The lengths that its engines report and the fleet file sets, in tokens."""
        return context_lengths(self.settings, self.scheduler.board)

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait for their turn."""
        return len(self.parts.turns) > 0

    async def read(
        self,
        request: EngineRequest,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        options: RequestOptions,
        receive: Receive,
    ) -> PoolRequest:
        """Read a request's prompt, as scheduling needs it.

        A failure here does not fail the request: its prompt's length is then an estimate. Raises
        ClientDisconnect if the client leaves meanwhile.
        """
        began = asyncio.get_running_loop().time()
        try:
            prompt = await self.reader.read(request, fields, headers, receive)
        except ClientDisconnect:
            raise
        except Exception:  # must not fail a request that an engine could serve
            logger.exception(
                "failed to read the prompt of request %s; routing by load", request.request_id
            )
            prompt = Prompt(
                guess(request, fields), known=False, depths=None, read_s=0.0, lookup_s=0.0
            )
            return PoolRequest(request, fields, headers, options, prompt)
        finally:
            request.record.read(asyncio.get_running_loop().time() - began)
        read = PoolRequest(request, fields, headers, options, prompt)
        return replace(read, prefill=await self._read_for_prefill(read, receive))

    async def _read_for_prefill(self, read: PoolRequest, receive: Receive) -> PoolRequest | None:
        """Return the request as the prefill pool reads it; None: that pool does not get it."""
        try:
            if self.prefill is None or not may_be_pulled(read, self.model):
                return None
            prompt = prompt_of(read, self.prefill.model, self.prefill.name)
            return await self.prefill.read(*prompt, receive)
        except ClientDisconnect:
            raise
        except Exception:  # must not fail a request that an engine could serve
            name = read.engine.request_id
            logger.exception("failed to read request %s for the prefill pool", name)
            return None

    def unfit(self, request: PoolRequest, origin: Pool) -> str | None:
        """Return why this pool must not serve a request for `origin`; None if it may."""
        loads = self.scheduler.board.last_known().values()
        return refusal_of(request, origin, self.settings, loads)

    def refresh_metrics(self, states: Mapping[str, int], target: int) -> None:
        """Update the gauges. `states`: the numbers of replicas by state; `target`: their target."""
        routing, admission = self.parts.routing_metrics, self.parts.admission_metrics
        routing.breaker(self.feeds.index.breaker_open)
        routing.leases_forged(self.feeds.loads.forged)
        routing.prediction_error(self.scheduler.correction.error)
        routing.replicas(states, target)
        if (decided := self.decided) is not None:
            routing.autoscaler(decided.demand, decided.arrivals, decided.forecast)
        now, gate = asyncio.get_running_loop().time(), self.scheduler.admission.gate
        rooms = self.scheduler.admission.interactive, self.scheduler.admission.queue
        for priority, room in zip(("interactive", "batch"), rooms, strict=True):
            admission.queued(priority, len(room), room.oldest_s(now))
        admission.outage(self.scheduler.outage is not None and self._is_wanted)
        if gate is not None:
            admission.overflow(gate.open, gate.share(now))

    async def _give_turns(self) -> None:
        try:
            await self.parts.turns.give()
        finally:
            now = asyncio.get_running_loop().time()
            if (passed_s := now - self._refreshed_at) >= TURN_PERIOD_S:
                self._refreshed_at = now
                self.scheduler.refresh_demand()
                self.parts.admission_metrics.idle(passed_s * len(self.scheduler.board.warm()))

    def _loads_needed_every_s(self) -> float:
        if self.is_waited_for:
            return READ_PERIOD_S
        return BUSY_PERIOD_S if self.scheduler.has_work else IDLE_PERIOD_S

    async def _look_for_replicas(self) -> None:
        """Detect the begin and end of an outage. At its begin, decide waiting requests again."""
        await self.feeds.loads.next_reading()
        self.scheduler.told_of_outage = await self.starts.look()
        is_outage, was_outage = self.scheduler.outage is not None, self.next_outage.done()
        if is_outage and not was_outage:
            logger.warning("pool %s has no replica", self.name)
            self.next_outage.set_result(None)
            self.parts.turns.decide_anew()
        elif was_outage and not is_outage:
            logger.info("pool %s has a replica again", self.name)
            self.next_outage = asyncio.get_running_loop().create_future()

    async def _follow_autoscaler(self) -> None:
        self.decided = await self.parts.read_decided() if self.settings.is_scaled else None
