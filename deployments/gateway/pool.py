"""One pool of engines, as one gateway serves it: reads a request, has it scheduled, sends it.

`autoscaling.pool_scheduler` decides; this feeds it, waits where it says to wait, and turns what it
says into an attempt on an engine or an answer to the client. A request is decided once, before
its first attempt: one that was let in is never refused later, and what fails while deciding lets
it in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import aiohttp
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from autoscaling.pool_scheduler import PoolScheduler, PoolSettings
from autoscaling.scheduling import Attempt, Decision, SchedulingRequest
from autoscaling.waiting import Waiter
from common.loops import forever
from deployments.fleet.fleet import Fleet
from deployments.fleet.pool import Pool
from deployments.gateway import request_body
from deployments.gateway.engine_attempt import EngineAttempt
from deployments.gateway.engine_fields import sequences_of
from deployments.gateway.errors import ApiError
from deployments.gateway.explanations import Explanations
from deployments.gateway.overflow_contract import refusal_of, renamed
from deployments.gateway.pool_reporter import Admitted, PoolReporter
from deployments.gateway.prompt_reader import PromptReader
from deployments.gateway.renderer_client import RendererClient
from deployments.gateway.request import EngineRequest, PoolRequest, Prompt, client_gone
from deployments.gateway.request_options import OVERFLOW_HEADER, RequestOptions
from deployments.gateway.transport import Transport
from observability.metrics import AdmissionMetrics, RoutingMetrics
from router.demand import Decided, read_decided, tell
from router.lease_signature import LeaseSigner
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.segment_keys import SegmentHasher, index_secret

logger = logging.getLogger("ray.serve")

# How often those who wait are looked after at least: an answer may be their turn. Loads come ten
# times a second.
TURN_PERIOD_S = 0.05
# How long a request waits for a warm replica to be given traffic: one round trip to Redis.
PROMOTION_BUDGET_S = 0.25
DECIDED_PERIOD_S = 1.0


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
        explanations: Explanations,
        routing_metrics: RoutingMetrics,
        admission_metrics: AdmissionMetrics,
    ) -> None:
        self.name = name
        self.settings: Pool = fleet.pools[name]
        self.transport = transport
        self.overflow: GatewayPool | None = None
        self.decided: Decided | None = None
        self.scheduler = PoolScheduler(asyncio.get_running_loop().time, _settings_of(fleet, name))
        board_name = fleet.board_of(name)
        self.feeds = PoolFeeds(
            connections.text,
            connections.binary,
            board_name,
            self.scheduler.board,
            self.scheduler.gateway,
            self.scheduler.heard,
            fleet.redis.lookup_budget_ms / 1000,
            scaled=self.settings.is_scaled,
            signer=LeaseSigner(connections.secret, board_name),
        )
        self.scheduler.announce = self.feeds.announce
        board = self.scheduler.board
        self.reporter = PoolReporter(
            name, self.settings.slo.by_class(), board, explanations, routing_metrics
        )
        renderer = RendererClient(connections.session, connections.secret, board)
        hasher = SegmentHasher(index_secret(connections.secret))
        self.reader = PromptReader(
            self.settings, renderer, hasher, board, self.feeds, routing_metrics
        )
        self._routing_metrics = routing_metrics
        self._admission_metrics = admission_metrics
        self._looked = asyncio.get_running_loop().time()
        # None: it was refused, for another tenant's
        self._turns: dict[Waiter[SchedulingRequest], asyncio.Future[Attempt | None]] = {}
        self._may_turn = asyncio.Event()
        self.scheduler.freed = self._may_turn.set
        self._promotions: set[asyncio.Future[None]] = set()
        self._read_decided = partial(read_decided, connections.text, board_name)
        self._tell_demand = partial(
            tell, connections.text, board_name, secrets.token_hex(8), self.scheduler.demand
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

    async def run(self) -> None:
        """Keep what is known current, and let go whose turn has come, until cancelled."""
        await asyncio.gather(
            self.feeds.run(),
            self.reader.renderer.run(),
            self._tell_demand(),
            forever(
                "decided",
                self._follow_autoscaler,
                DECIDED_PERIOD_S,
                fails=f"what the autoscaler decides of {self.name} is not known",
                logger=logger,
                outages=REDIS_FAILURES,
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
    def is_waited_for(self) -> bool:
        """Whether requests wait here for their turn."""
        return bool(self._turns)

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
            guess = PlacementRequest(request_body.estimate_prompt_tokens(request.body))
            prompt = Prompt(guess, known=False, depths=None, read_s=0.0, lookup_s=0.0)
        request.record.phases.read_s += asyncio.get_running_loop().time() - began
        return PoolRequest(request, fields, headers, options, prompt)

    async def schedule(self, request: PoolRequest, receive: Receive) -> EngineAttempt:
        """Where the request goes, however long it has to wait for that.

        Raises ApiError: 429 when it cannot be served within its SLO, 400 for an overflow that
        it asks for and cannot have; ClientDisconnect when `receive` says so while it waits.
        """
        try:
            decision = await self._decide(request)
        except Exception:  # deciding must not fail what an engine could serve
            logger.exception("request %s is let in undecided", request.engine.request_id)
            request.engine.record.verdict = "admit"
            attempt = self.scheduler.place_anywhere(_asked(request, None))
            return self._attempt(request, attempt, "deciding failed")
        if decision.verdict.kind == "overflow":
            assert self.overflow is not None
            return await self.overflow.stand_in(request, self, decision, receive)
        self._decided(request, decision)
        if decision.evicted is not None:
            self._turns[decision.evicted].set_result(None)
        if (waiter := decision.waiter) is not None:
            turn = await self._turn_of(waiter, receive)
            if turn is None:
                decision = decision.refused_after_all()
                self._decided(request, decision)
                raise self.refused(request, decision)
            request.engine.record.phases.wait_s = turn.placed_at - waiter.since
            return self._attempt(request, turn, "its turn came")
        if decision.attempt is None:
            raise self.refused(request, decision)
        return self._attempt(request, decision.attempt, decision.verdict.reason)

    async def stand_in(
        self, request: PoolRequest, origin: GatewayPool, decision: Decision, receive: Receive
    ) -> EngineAttempt:
        """Serve here a request for `origin`, in this pool's model, where that is soonest.

        Raises ApiError 429 for one that proves too long in this model's tokens, and for one that
        others came before while it was read.
        """
        model = self.settings.served_model_name
        engine = renamed(request.engine, request.fields, model)
        fields = {**request.fields, "model": model}
        here = await self.read(engine, fields, request.headers, request.options, receive)
        unfit = self.unfit(here, origin.settings) if here.prompt.known else None
        final = self.scheduler.stand_in(_asked(here, None), origin.scheduler, decision, unfit)
        origin._decided(request, final)
        if final.attempt is None:
            raise origin.refused(request, final)
        self._admission_metrics.decided(request.options.priority, "admit")
        return self._attempt(here, final.attempt, final.verdict.reason, overflowed=True)

    def unfit(self, request: PoolRequest, of: Pool) -> str | None:
        """Why a request for the pool `of` must not be served here; None: it may."""
        loads = self.scheduler.board.last_known().values()
        return refusal_of(request, of, self.settings, loads)

    def refused(self, request: PoolRequest, decision: Decision) -> ApiError:
        """What the client of a refused request is told; it is explained, too."""
        verdict, options = decision.verdict, request.options
        if options.overflow == "only" and (why := decision.request.no_overflow) is not None:
            message = f"The header {OVERFLOW_HEADER} is 'only', but {why}. Leave it out."
            return ApiError(400, message, code="cannot_overflow", param=OVERFLOW_HEADER)
        message = self._refusal(options, decision)
        with contextlib.suppress(Exception):  # an explanation must not change the answer
            waited_s = asyncio.get_running_loop().time() - request.engine.arrived
            admitted = Admitted(options.priority, "refused", message, waited_s)
            self.reporter.refused(request, decision.considered.placement, admitted)
        return ApiError(
            429,
            f"{message} Try again in {verdict.retry_after_s} s.",
            code="over_capacity",
            retry_after=verdict.retry_after_s,
        )

    def admission_status(self) -> dict[str, Any]:
        """How this gateway process lets requests in. `held`: wait for a replica to start."""
        now, admission = asyncio.get_running_loop().time(), self.scheduler.admission
        rooms, gate = (admission.queue, admission.interactive), admission.gate
        promised = {"interactive": self.settings.slo.interactive, "batch": self.settings.slo.batch}
        return {
            "slo": {name: slo.model_dump() for name, slo in promised.items() if slo},
            "waiting": sum(map(len, rooms)),
            "waiting_by_tenant": Counter(rooms[0].by_tenant) + Counter(rooms[1].by_tenant),
            "oldest_wait_s": round(max(room.oldest_s(now) for room in rooms), 3),
            "held": self.scheduler.unassigned,
            "overflowing": gate is not None and gate.open,
            "overflow_share": round(gate.share(now), 4) if gate else 0.0,
        }

    def index_status(self) -> dict[str, Any]:
        """How this gateway process fares with the prefix index; times are milliseconds."""
        index = self.feeds.index
        recent = sorted(index.recent_seconds)
        return {
            "answers": not index.breaker_open,
            "prompts_known": self.reader.renderer.prompt_tokens is not None,
            "lookups": index.lookups,
            "failures": index.failures,
            "skipped": index.skipped,
            "lookup_p50_ms": round(recent[len(recent) // 2] * 1000, 3) if recent else None,
            "ttft_prediction_error": self.scheduler.correction.error,
        }

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
        if gate is not None:
            admission.overflow(gate.open, gate.share(now))

    async def _decide(self, request: PoolRequest) -> Decision:
        no_overflow: str | None = "the pool has no overflow pool"
        if self.overflow is not None:
            no_overflow = self.overflow.unfit(request, self.settings)
        asked = _asked(request, no_overflow)
        considered = self.scheduler.consider(asked)
        if self.scheduler.needs_warm(asked, considered):
            began = asyncio.get_running_loop().time()
            await self._promote(asked.arrived)
            phases = request.engine.record.phases
            phases.promotion_s = asyncio.get_running_loop().time() - began
            considered = self.scheduler.consider(asked)
        return self.scheduler.decide(asked, considered)

    def _decided(self, request: PoolRequest, decision: Decision) -> None:
        request.engine.record.verdict = decision.verdict.kind
        self._admission_metrics.decided(request.options.priority, decision.verdict.kind)

    def _attempt(
        self, request: PoolRequest, attempt: Attempt, reason: str, overflowed: bool = False
    ) -> EngineAttempt:
        waited_s = asyncio.get_running_loop().time() - request.engine.arrived
        verdict: Literal["admitted", "overflowed"] = "overflowed" if overflowed else "admitted"
        admitted = Admitted(request.options.priority, verdict, reason, waited_s)
        return EngineAttempt(
            self.scheduler, self.reporter, self.transport, request, attempt, admitted
        )

    def _refusal(self, options: RequestOptions, decision: Decision) -> str:
        verdict, slo = decision.verdict, self.settings.slo.by_class().get(options.priority)
        if slo is None or verdict.best_ttft_s is None:
            message = f"The request cannot be served now, because {verdict.reason}."
        else:
            message = (
                f"No replica is sure to begin to answer within {slo.ttft_s:g} s, as is promised for"
                f" {options.priority} requests: the soonest would begin in"
                f" {verdict.best_ttft_s:.1f} s, and {verdict.reason}."
            )
        if self.overflow is not None and (why := decision.request.no_overflow) is not None:
            model = self.overflow_model
            message += f" The model {model} may not answer instead, because {why}."
        return message

    async def _promote(self, since: float) -> None:
        """Let a warm replica take traffic for a request that came at `since`; wait a little."""
        promotion = asyncio.ensure_future(self._promote_one(since))
        self._promotions.add(promotion)
        promotion.add_done_callback(self._promotions.discard)
        # goes on by itself: the next request has the replica that this one could not wait for
        await asyncio.wait({promotion}, timeout=PROMOTION_BUDGET_S)

    async def _promote_one(self, since: float) -> None:
        board = self.scheduler.board
        before = board.loads().keys()
        if await self.feeds.promote():
            for replica_id in board.loads().keys() - before:
                self.reporter.promoted(replica_id, since)

    async def _turn_of(self, waiter: Waiter[SchedulingRequest], receive: Receive) -> Attempt | None:
        """Wait for a request's turn, while its client does; None: it lost its place."""
        turn: asyncio.Future[Attempt | None] = asyncio.get_running_loop().create_future()
        self._turns[waiter] = turn
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            either: set[asyncio.Future[Any]] = {turn, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                raise ClientDisconnect
            return turn.result()
        except BaseException:
            if turn.done() and (attempt := turn.result()):  # it came while the client left
                self.scheduler.ended(attempt, None)
            raise
        finally:
            gone.cancel()
            self.scheduler.left(waiter)
            del self._turns[waiter]

    async def _give_turns(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TURN_PERIOD_S):
                await self._may_turn.wait()
        self._may_turn.clear()
        try:
            while (turn := self.scheduler.next_turn()) is not None:
                waiter, attempt = turn
                self._turns[waiter].set_result(attempt)
        finally:
            now = asyncio.get_running_loop().time()
            if (passed_s := now - self._looked) >= TURN_PERIOD_S:
                self._looked = now
                self.scheduler.refresh_demand()
                self._admission_metrics.idle(passed_s * len(self.scheduler.board.warm()))

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
        sequences_of(request.engine.path, request.fields),
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
