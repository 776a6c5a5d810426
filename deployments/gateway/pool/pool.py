"""One pool of engines, as one gateway serves it: reads a request, has it scheduled, sends it.

`autoscaling.pool_scheduler` decides; this feeds it, waits where it says to wait, and turns what it
says into an attempt on an engine or an answer to the client. A request is decided once, before
its first attempt: one that was let in is not refused later, unless the pool's last replica is lost
before it has an answer; and what fails while deciding lets it in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from autoscaling.admission import Verdict
from autoscaling.pool_scheduler import PoolScheduler, PoolSettings
from autoscaling.scheduling import Attempt, Decision, SchedulingRequest
from common.loops import forever
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.gateway.attempt.engine_attempt import DecideAnew, EngineAttempt, OutageWatch
from deployments.gateway.attempt.moves import Moves
from deployments.gateway.attempt.transport import Transport
from deployments.gateway.intake import request_body
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import EngineRequest, PoolRequest, Prompt, nobody_leaves
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.pool.constrained import needs_trial
from deployments.gateway.pool.overflow_contract import refusal_of, renamed
from deployments.gateway.pool.prompt_reader import PromptReader
from deployments.gateway.pool.refusals import cannot_overflow, refusal, why_refused
from deployments.gateway.pool.renderer_client import RendererClient
from deployments.gateway.pool.serve_controller import AllReplicas, Question
from deployments.gateway.pool.start_watch import StartWatch
from deployments.gateway.pool.turns import TURN_PERIOD_S, Turns
from deployments.gateway.pool.warm_promotions import WarmPromotions
from deployments.gateway.record.pool_reporter import AdmissionVerdict, Admitted, PoolReporter
from observability.metrics import AdmissionMetrics, RoutingMetrics
from router.demand import Decided, read_decided, tell
from router.load_reader import IDLE_PERIOD_S, READ_PERIOD_S
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.segment_keys import SegmentHasher, index_secret
from router.signature import Signer

logger = logging.getLogger("ray.serve")

DECIDED_PERIOD_S = 1.0
# How often loads are read while answers are under way: their engine may be lost, or leave.
BUSY_PERIOD_S = 0.25


@dataclass(frozen=True, repr=False)
class Connections:
    """What a pool is spoken to through. `text` is Redis for the board, `binary` for the index."""

    text: AsyncRedis
    binary: AsyncRedis
    session: aiohttp.ClientSession
    secret: str


class GatewayPool:
    """`scheduler`, `reader`, `feeds`, `settings` and `decided` (what the autoscaler last said) are
    to read. `overflow` is the pool that serves what this one cannot in time; `change` names it."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        connections: Connections,
        transport: Transport,
        replicas: Question[AllReplicas],
        routing_metrics: RoutingMetrics,
        admission_metrics: AdmissionMetrics,
    ) -> None:
        self.name = name
        self.settings: Pool = fleet.pools[name]
        self.transport = transport
        self.overflow: GatewayPool | None = None
        self.decided: Decided | None = None
        self.scheduler = PoolScheduler(asyncio.get_running_loop().time, _settings_of(fleet, name))
        board_name, signer = fleet.board_of(name), Signer(connections.secret)
        self.feeds = PoolFeeds(
            connections.text,
            connections.binary,
            board_name,
            self.scheduler.board,
            self.scheduler.gateway,
            self.scheduler.heard,
            fleet.redis.lookup_budget_ms / 1000,
            scaled=self.settings.is_scaled,
            signer=signer,
        )
        self.scheduler.announce = self.feeds.announce
        board = self.scheduler.board
        self._moves = Moves(board)
        self.reporter = PoolReporter(name, self.settings.slo.by_class(), board, routing_metrics)
        renderer = RendererClient(connections.session, connections.secret, board)
        hasher = SegmentHasher(index_secret(connections.secret))
        self.reader = PromptReader(
            self.settings, renderer, hasher, board, self.feeds, routing_metrics
        )
        self._routing_metrics = routing_metrics
        self._admission_metrics = admission_metrics
        self._looked = asyncio.get_running_loop().time()
        self._turns = Turns(self.scheduler)
        self._next_outage: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.starts = StartWatch(name, board, replicas, _startup_of(self.settings))
        self._promotions = WarmPromotions(self.feeds, board, self.reporter)
        self._read_decided = partial(read_decided, connections.text, board_name, signer)
        gateway, demand = secrets.token_hex(8), self.scheduler.demand
        told = (connections.text, board_name, gateway, demand)
        self._tell_demand = partial(
            tell, *told, signer=signer, is_wanted=lambda: self.settings.is_scaled
        )

    def change(self, fleet: Fleet, overflow: GatewayPool | None) -> None:
        """Serve by the fleet's settings from now on; requests under way go on as they began."""
        self.settings = settings = fleet.pools[self.name]
        self.overflow = overflow
        elsewhere = overflow.scheduler if overflow else None
        self.scheduler.change(_settings_of(fleet, self.name), elsewhere)
        self.feeds.loads.scaled = settings.is_scaled
        self.feeds.index.budget_s = fleet.redis.lookup_budget_ms / 1000
        self.reporter.slos = settings.slo.by_class()
        self.reader.pool = settings
        self._moves.after_s = fleet.gateway.move_after_s
        self.starts.expected_s = _startup_of(settings)

    async def run(self) -> None:
        """Keep what is known current, and let go whose turn has come, until cancelled."""
        await asyncio.gather(
            self.feeds.run(self._loads_needed_every_s),
            self.reader.renderer.run(self.feeds.loads.next_reading),
            self._tell_demand(),
            self._moves.run(),
            forever(
                "decided",
                self._follow_autoscaler,
                DECIDED_PERIOD_S,
                fails=f"what the autoscaler decides of {self.name} is not known",
                logger=logger,
                outages=REDIS_FAILURES,
            ),
            forever(
                "replica_starts",
                self._look_for_replicas,
                fails=f"whether {self.name} has a replica is not known",
                logger=logger,
            ),
            forever(
                "turns",
                self._give_turns,
                fails=f"the turn of a waiting request of {self.name} failed",
                logger=logger,
            ),
        )

    @property
    def overflow_model(self) -> str | None:
        """The model that may answer instead of this pool's."""
        return self.overflow.settings.served_model_name if self.overflow else None

    @property
    def _is_wanted(self) -> bool:
        """Whether a replica should be up: a pool that is scaled to zero misses none."""
        if self.decided is not None:
            return self.decided.target > 0
        scaled = self.settings.autoscaling
        return scaled is None or scaled.min_replicas > 0

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait here for their turn."""
        return len(self._turns) > 0

    async def read(
        self,
        request: EngineRequest,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        options: RequestOptions,
        receive: Receive,
    ) -> PoolRequest:
        """What is to be known of a request before it is scheduled.

        Raises ClientDisconnect when `receive` says so meanwhile.
        """
        began = asyncio.get_running_loop().time()
        try:
            prompt = await self.reader.read(request, fields, headers, receive)
        except ClientDisconnect:
            raise
        except Exception:  # reading must not fail what an engine could serve
            logger.exception("request %s is placed without its prompt", request.request_id)
            return self.unread(request, fields, headers, options)
        finally:
            request.record.phases.read_s += asyncio.get_running_loop().time() - began
        if needs_trial(fields):
            prompt = replace(prompt, placement=replace(prompt.placement, needs_trial=True))
        return PoolRequest(request, fields, headers, options, prompt)

    def unread(
        self,
        request: EngineRequest,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        options: RequestOptions,
    ) -> PoolRequest:
        """A request of which only the length is known, roughly."""
        guess = PlacementRequest(request_body.estimate_prompt_tokens(request.body))
        prompt = Prompt(guess, known=False, depths=None, read_s=0.0, lookup_s=0.0)
        return PoolRequest(request, fields, headers, options, prompt)

    def place_unread(self, request: PoolRequest, failed: frozenset[str]) -> EngineAttempt:
        """Where another engine may go on with an answer that this gateway did not begin."""
        attempt = self.scheduler.place(_asked(request, None), failed)
        return self._attempt(request, attempt, Verdict("admit", "it was let in before"))

    async def schedule(
        self, request: PoolRequest, receive: Receive, is_again: bool = False
    ) -> EngineAttempt:
        """Where the request goes, however long it has to wait for that.

        Raises ApiError: 429 when it cannot be served within its SLO, 503 when no replica is up and
        none will be before its deadline, 400 for an overflow that it asks for and cannot have;
        ClientDisconnect when `receive` says so while it waits.
        """
        try:
            decision = await self._decide(request, is_again)
        except Exception:  # deciding must not fail what an engine could serve
            logger.exception("request %s is let in undecided", request.engine.request_id)
            request.engine.record.verdict = "admit"
            attempt = self.scheduler.place_anywhere(_asked(request, None))
            return self._attempt(request, attempt, Verdict("admit", "deciding failed"))
        if decision.verdict.kind == "overflow":
            assert self.overflow is not None
            return await self.overflow.stand_in(request, self, decision, receive)
        return await self._follow(request, decision, receive)

    async def _follow(
        self, request: PoolRequest, decision: Decision, receive: Receive
    ) -> EngineAttempt:
        """What was decided, where this pool is to serve the request or nobody is."""
        self._decided(request, decision)
        anew = self._anew(request, decision)
        if decision.evicted is not None:
            self._turns.refuse(decision.evicted)
        if (waiter := decision.waiter) is not None:
            self._explain(request, decision, "queued", decision.verdict.reason)
            self.feeds.loads.want()  # from now on often
            turn = await self._turns.of(waiter, receive)
            if turn == "anew":
                return await self.schedule(request, receive, is_again=True)
            if turn == "refused":
                decision = decision.refused_after_all()
                self._decided(request, decision)
                raise self.refused(request, decision)
            request.engine.record.phases.wait_s += turn.placed_at - waiter.since
            verdict = replace(decision.verdict, reason="its turn came", outage=False)
            return self._attempt(request, turn, verdict, anew)
        if decision.attempt is None:
            raise self.refused(request, decision)
        return self._attempt(request, decision.attempt, decision.verdict, anew)

    async def stand_in(
        self, request: PoolRequest, origin: GatewayPool, decision: Decision, receive: Receive
    ) -> EngineAttempt:
        """Serve here a request for `origin`, in this pool's model, where that is soonest.

        What it raises is as of `schedule`: also for one that proves too long in this model's
        tokens, and for one that others came before while it was read.
        """
        model = self.settings.served_model_name
        engine = renamed(request.engine, request.fields, model)
        fields = {**request.fields, "model": model}
        here = await self.read(engine, fields, request.headers, request.options, receive)
        unfit = self.unfit(here, origin.settings) if here.prompt.known else None
        final = self.scheduler.stand_in(_asked(here, None), origin.scheduler, decision, unfit)
        if final.verdict.kind != "overflow":
            return await origin._follow(request, final, receive)
        assert final.attempt is not None
        origin._decided(request, final)
        self._admission_metrics.decided(request.options.priority, "admit")
        anew = origin._anew(request, decision)
        return self._attempt(here, final.attempt, final.verdict, anew)

    def unfit(self, request: PoolRequest, of: Pool) -> str | None:
        """Why a request for the pool `of` must not be served here; None: it may."""
        loads = self.scheduler.board.last_known().values()
        return refusal_of(request, of, self.settings, loads)

    def refused(self, request: PoolRequest, decision: Decision) -> ApiError:
        """Return the error for the client of a refused request, and explain the refusal."""
        if (error := cannot_overflow(decision)) is not None:
            return error
        priority = request.options.priority
        why = why_refused(decision, self.settings.slo.by_class().get(priority), self.overflow_model)
        self._explain(request, decision, "refused", why)
        return refusal(decision, why)

    def _explain(
        self,
        request: PoolRequest,
        decision: Decision,
        decided: AdmissionVerdict,
        why: str,
    ) -> None:
        with contextlib.suppress(Exception):  # an explanation must not change the answer
            waited_s = asyncio.get_running_loop().time() - request.engine.arrived
            outage = decision.verdict.outage
            admitted = Admitted(request.options.priority, decided, why, waited_s, outage)
            self.reporter.unplaced(request, decision.considered.placement, admitted)

    def refresh_metrics(self, states: Mapping[str, int], target: int) -> None:
        """Bring the gauges up to date; replicas by state, and how many there should be."""
        routing, admission = self._routing_metrics, self._admission_metrics
        routing.breaker(self.feeds.index.breaker_open)
        routing.leases_forged(self.feeds.loads.forged)
        routing.prediction_error(self.scheduler.correction.error)
        routing.replicas(states, target)
        if (decided := self.decided) is not None:
            routing.autoscaler(decided.demand, decided.arrivals, decided.forecast)
        now, gate = asyncio.get_running_loop().time(), self.scheduler.admission.gate
        rooms = self.scheduler.admission.interactive, self.scheduler.admission.queue
        for priority, room in zip(("interactive", "batch"), rooms, strict=True):
            admission.waiting(priority, len(room), room.oldest_s(now))
        admission.outage(self.scheduler.outage is not None and self._is_wanted)
        if gate is not None:
            admission.overflow(gate.open, gate.share(now))

    async def _decide(self, request: PoolRequest, is_again: bool) -> Decision:
        no_overflow: str | None = "the pool has no overflow pool"
        if self.overflow is not None:
            no_overflow = self.overflow.unfit(request, self.settings)
        asked = replace(_asked(request, no_overflow), is_again=is_again)
        considered = self.scheduler.consider(asked)
        if self.scheduler.needs_warm(asked, considered):
            began = asyncio.get_running_loop().time()
            await self._promotions.promote(asked.arrived)
            phases = request.engine.record.phases
            phases.promotion_s = asyncio.get_running_loop().time() - began
            considered = self.scheduler.consider(asked)
        return self.scheduler.decide(asked, considered)

    def _decided(self, request: PoolRequest, decision: Decision) -> None:
        verdict, priority = decision.verdict, request.options.priority
        request.engine.record.verdict = verdict.kind
        self._admission_metrics.decided(priority, verdict.kind)
        if verdict.outage:
            self._admission_metrics.decided_in_outage(priority, verdict.kind)

    def _anew(self, request: PoolRequest, decision: Decision) -> DecideAnew | None:
        """How it is decided once more, if the replica that it goes to now was the last; once."""
        if decision.request.is_again or decision.verdict.outage:
            return None
        return partial(self.schedule, request, nobody_leaves, is_again=True)

    def _attempt(
        self,
        request: PoolRequest,
        attempt: Attempt,
        verdict: Verdict,
        anew: DecideAnew | None = None,
    ) -> EngineAttempt:
        waited_s = asyncio.get_running_loop().time() - request.engine.arrived
        decided: AdmissionVerdict = "overflowed" if verdict.kind == "overflow" else "admitted"
        admitted = Admitted(
            request.options.priority, decided, verdict.reason, waited_s, verdict.outage
        )
        watch = anew and OutageWatch(self._next_outage, anew)
        return EngineAttempt(
            self.scheduler,
            self.reporter,
            self.transport,
            self._moves,
            request,
            attempt,
            admitted,
            watch,
        )

    async def _give_turns(self) -> None:
        try:
            await self._turns.give()
        finally:
            now = asyncio.get_running_loop().time()
            if (passed_s := now - self._looked) >= TURN_PERIOD_S:
                self._looked = now
                self.scheduler.refresh_demand()
                self._admission_metrics.idle(passed_s * len(self.scheduler.board.warm()))

    def _loads_needed_every_s(self) -> float:
        if self.is_waited_for:
            return READ_PERIOD_S
        return BUSY_PERIOD_S if self.scheduler.has_work else IDLE_PERIOD_S

    async def _look_for_replicas(self) -> None:
        """Whether there are any; when none is left, who waits for one is to be decided again."""
        await self.feeds.loads.next_reading()
        self.scheduler.told_of_outage = await self.starts.look()
        is_one, was_one = self.scheduler.outage is not None, self._next_outage.done()
        if is_one and not was_one:
            logger.warning("%s: no replica is up", self.name)
            self._next_outage.set_result(None)
            self._turns.decide_anew()
        elif was_one and not is_one:
            self._next_outage = asyncio.get_running_loop().create_future()

    async def _follow_autoscaler(self) -> None:
        self.decided = await self._read_decided() if self.settings.is_scaled else None


def _asked(request: PoolRequest, no_overflow: str | None) -> SchedulingRequest:
    options = request.options
    return SchedulingRequest(
        request.prompt.placement,
        request.prompt.depths,
        request.engine.arrived,
        request.engine.tenant,
        options.priority,
        options.policy,
        options.overflow,
        no_overflow,
        request.asked.sequences,
        request.engine.deadline,
    )


def _settings_of(fleet: Fleet, name: str) -> PoolSettings:
    pool = fleet.pools[name]
    return PoolSettings(
        pool.slo.by_class(),
        pool.batch_queue,
        pool.overflow.rules() if pool.overflow else None,
        pool.policy,
        pool.shadow_policy,
        pool.max_queued_requests,
        {tenant: rights.weight for tenant, rights in fleet.gateway.tenants.items()},
    )


def _startup_of(pool: Pool) -> float | None:
    """What the fleet file says of a start."""
    return pool.autoscaling.startup_s if pool.autoscaling else None
