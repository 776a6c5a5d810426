"""The way into a pool: each request is admitted, waits for its turn, overflows or is refused.

`autoscaling.admission` decides; this finds out what it decides from and carries it out. A request
is decided once, before its first attempt: one that was let in is never refused later, and what
fails while deciding lets it in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autoscaling.admission import Admission, Outlook, Verdict
from autoscaling.overflow import refusal
from autoscaling.waiting import Waiter
from deployments.fleet.fleet import Pool
from deployments.gateway.errors import ApiError
from deployments.gateway.overflow_contract import needs_of, offers_of, renamed
from deployments.gateway.pool_router import Admitted, PoolRouter, Prompt
from deployments.gateway.relay import EngineRequest
from deployments.gateway.routed_attempt import RoutedAttempt
from deployments.gateway.transport import Transport
from deployments.gateway.wishes import OVERFLOW_HEADER, Wishes
from observability.metrics import AdmissionMetrics
from router.placer import Considered
from router.policies import PlacementRequest

logger = logging.getLogger("ray.serve")

# How often those who wait are looked after. Loads come ten times a second.
TURN_PERIOD_S = 0.05
# How long a request waits for a warm replica to be given traffic: one round trip to Redis.
PROMOTION_BUDGET_S = 0.25


@dataclass(frozen=True)
class Visit:
    """One request at the entrance: what it is, what is known of its prompt, what it asks."""

    request: EngineRequest
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    prompt: Prompt
    policy: str | None
    wishes: Wishes


@dataclass(frozen=True, eq=False)
class _Turn:
    visit: Visit
    uncached_tokens: int
    came: asyncio.Future[RoutedAttempt]


class Entrance:
    """Of one pool, in one gateway. `admission` is public: `status` reads it."""

    def __init__(
        self,
        pool: Pool,
        router: PoolRouter,
        transport: Transport,
        overflow: Entrance | None,
        metrics: AdmissionMetrics,
    ) -> None:
        self._pool = pool
        self._router = router
        self._transport = transport
        self._overflow = overflow
        self._metrics = metrics
        self._promotions: set[asyncio.Future[bool]] = set()
        rules = pool.overflow.rules() if pool.overflow else None
        self.admission = Admission(pool.slo.by_class(), pool.batch_queue, rules)

    async def run(self) -> None:
        """Let those in whose turn has come, and tell the autoscaler who waits, until cancelled."""
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            await asyncio.sleep(TURN_PERIOD_S)
            try:
                self._next_turns()
            except Exception:  # who waits must not wait for ever
                logger.exception("the turn of a waiting request failed")
            room, demand = self.admission.room, self._router.demand
            demand.waiting = len(room) + self._router.held
            demand.queued_tokens = sum(waiter.what.uncached_tokens for waiter in room)
            passed_s, looked = loop.time() - looked, loop.time()
            self._metrics.idle(passed_s * len(self._router.placer.board.warm()))

    async def admit(self, visit: Visit) -> RoutedAttempt:
        """Where the request goes, however long it has to wait for that.

        Raises ApiError: 429 when it cannot be served within its SLO, 400 for an overflow that
        it asks for and cannot have.
        """
        considered, now = await self._outlook(visit), asyncio.get_running_loop().time()
        contract: str | None = None
        try:
            contract = self._contract(visit)
            verdict = self._decide(visit, considered, contract, now)
            self._count(visit, considered, verdict)
        except Exception:  # deciding must not fail what an engine could serve
            logger.exception("request %s is let in undecided", visit.request.request_id)
            verdict = Verdict("admit", "could not be decided")
        visit.request.record.verdict = verdict.kind
        if verdict.kind == "reject" and visit.wishes.overflow == "only" and contract is not None:
            message = f"{OVERFLOW_HEADER} is 'only', but {contract}; leave it out"
            raise ApiError(400, message, code="cannot_overflow", param=OVERFLOW_HEADER)
        match verdict.kind:
            case "admit":
                return self._attempt(visit, considered, verdict.index, verdict.reason)
            case "wait":
                return await self._turn(visit, considered, now)
            case "overflow":
                assert self._overflow is not None
                return await self._overflow.stand_in(visit, self, verdict.reason)
            case "reject":
                raise self._refused(visit, considered, verdict, contract)

    def status(self) -> dict[str, Any]:
        """How this gateway process lets requests in. `held`: wait for a replica to start."""
        now, admission = asyncio.get_running_loop().time(), self.admission
        room, gate = admission.room, admission.gate
        promised = {"interactive": self._pool.slo.interactive, "batch": self._pool.slo.batch}
        return {
            "slo": {name: slo.model_dump() for name, slo in promised.items() if slo},
            "waiting": len(room),
            "waiting_by_tenant": room.by_tenant,
            "oldest_wait_s": round(room.oldest_s(now), 3),
            "held": self._router.held,
            "overflowing": gate is not None and gate.open,
            "overflow_share": round(gate.share(now), 4) if gate else 0.0,
        }

    def refresh_metrics(self) -> None:
        """Bring the gauges up to date."""
        now, gate = asyncio.get_running_loop().time(), self.admission.gate
        room = self.admission.room
        self._metrics.waiting(len(room), room.oldest_s(now))
        if gate is not None:
            self._metrics.overflow(gate.open, gate.share(now))

    def outlook(self, prompt_tokens: int) -> Sequence[Outlook]:
        """How soon a prompt of about this length would be served here, nothing of it cached."""
        asked = PlacementRequest(prompt_tokens)
        return self._router.placer.consider(asked, None).placement.ranked

    def _decide(
        self, visit: Visit, considered: Considered, contract: str | None, now: float
    ) -> Verdict:
        wishes, others = visit.wishes, None
        if self._overflow is not None and contract is None and wishes.overflow != "never":
            others = self._overflow.outlook(visit.prompt.request.prompt_tokens)
        return self.admission.decide(
            wishes.priority,
            now - visit.request.arrived,
            considered.placement.ranked,
            others,
            now,
            wishes.overflow == "only",
            self._doubt,
        )

    @property
    def _doubt(self) -> float:
        return self._router.placer.calibration.error or 0.0

    async def _outlook(self, visit: Visit) -> Considered:
        """The candidates, with a warm replica among them where the SLO is lost without."""
        considered, since = self._consider(visit), visit.request.arrived
        elapsed_s = asyncio.get_running_loop().time() - since
        lost = self.admission.is_lost(elapsed_s, considered.placement.ranked, self._doubt)
        if not lost or visit.wishes.priority != "interactive":
            return considered
        if not self._router.placer.board.warm():
            return considered
        promotion = asyncio.ensure_future(self._router.promote(since))
        self._promotions.add(promotion)
        promotion.add_done_callback(self._promotions.discard)
        # goes on by itself: the next request has the replica that this one could not wait for
        await asyncio.wait({promotion}, timeout=PROMOTION_BUDGET_S)
        return self._consider(visit)

    def _count(self, visit: Visit, considered: Considered, verdict: Verdict) -> None:
        prompt_tokens, demand = visit.prompt.request.prompt_tokens, self._router.demand
        cached = max((c.cached_tokens for c in considered.placement.ranked), default=0)
        demand.arrived += 1
        demand.prompt_tokens += prompt_tokens
        demand.uncached_tokens += max(0, prompt_tokens - cached)
        demand.refused += verdict.kind == "reject"
        demand.overflowed += verdict.kind == "overflow"
        self._metrics.decided(visit.wishes.priority, verdict.kind)

    def _consider(self, visit: Visit) -> Considered:
        prompt = visit.prompt
        return self._router.placer.consider(prompt.request, prompt.held, policy=visit.policy)

    def _attempt(
        self,
        visit: Visit,
        considered: Considered,
        index: int,
        reason: str,
        verdict: Literal["admitted", "overflowed"] = "admitted",
    ) -> RoutedAttempt:
        waited_s = asyncio.get_running_loop().time() - visit.request.arrived
        return RoutedAttempt(
            self._router,
            self._transport,
            visit.request,
            visit.prompt,
            self._router.placer.take(considered, index),
            Admitted(visit.wishes.priority, verdict, reason, waited_s),
        )

    def _contract(self, visit: Visit) -> str | None:
        """Why this request may not be served by the overflow pool; None: it may."""
        if self._overflow is None:
            return "the pool has no overflow pool"
        return self._overflow.refuses(visit, self._pool, visit.prompt.request.prompt_tokens)

    def refuses(self, visit: Visit, of: Pool, prompt_tokens: int) -> str | None:
        """Why a request for the pool `of` must not be served here, with a prompt of that length."""
        request = visit.request
        needs = needs_of(request.path, visit.fields, request.model, of, prompt_tokens)
        loads = self._router.placer.board.last_known().values()
        return refusal(needs, offers_of(self._pool, of.model, loads))

    async def _turn(self, visit: Visit, considered: Considered, now: float) -> RoutedAttempt:
        best = min(considered.placement.ranked, key=lambda c: c.raw_ttft)
        came: asyncio.Future[RoutedAttempt] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            _Turn(visit, max(0, visit.prompt.request.prompt_tokens - best.cached_tokens), came),
            visit.request.tenant,
            max(0.0, best.raw_ttft - best.wait),
            now,
        )
        self.admission.room.enter(waiter)
        try:
            return await came
        except asyncio.CancelledError:
            if came.done() and not came.cancelled():  # its turn came while the client left
                came.result().ended()
            raise
        finally:
            self.admission.room.leave(waiter)

    def _next_turns(self) -> None:
        room, now = self.admission.room, asyncio.get_running_loop().time()
        while (waiter := room.next()) is not None:
            turn: _Turn = waiter.what
            considered = self._consider(turn.visit)
            index = self.admission.may_leave(now - waiter.since, considered.placement.ranked)
            if index is None:
                return
            room.leave(waiter)
            if not turn.came.done():
                turn.came.set_result(self._attempt(turn.visit, considered, index, "its turn"))

    async def stand_in(self, visit: Visit, instead_of: Entrance, reason: str) -> RoutedAttempt:
        """Serve a request for another pool here, where that is soonest.

        Raises ApiError 429 for one that proves too long in this model's tokens, and for one that
        others came before while it was read.
        """
        of = instead_of._pool
        model = self._pool.served_model_name
        request = renamed(visit.request, visit.fields, model)
        fields = {**visit.fields, "model": model}
        prompt = await self._router.read(request, fields, visit.headers)
        if prompt.known and (why := self.refuses(visit, of, prompt.request.prompt_tokens)):
            message = f"every replica is busy, and {model} cannot answer instead: {why}"
            raise ApiError(429, message, code="over_capacity", retry_after=1)
        here = Visit(request, fields, visit.headers, prompt, visit.policy, visit.wishes)
        considered = self._consider(here)
        elapsed_s = asyncio.get_running_loop().time() - request.arrived
        ranked, priority = considered.placement.ranked, visit.wishes.priority
        if instead_of.admission.is_lost(elapsed_s, ranked, self._doubt, priority):
            message = f"no replica can answer in time, and {model} has no room left to"
            raise ApiError(429, message, code="over_capacity", retry_after=1)
        self._count(here, considered, Verdict("admit", reason))
        ttfts = [candidate.predicted_ttft for candidate in considered.placement.ranked]
        soonest = ttfts.index(min(ttfts)) if ttfts else 0
        return self._attempt(here, considered, soonest, reason, "overflowed")

    def _refused(
        self, visit: Visit, considered: Considered, verdict: Verdict, contract: str | None
    ) -> ApiError:
        slo = self._pool.slo.by_class().get(visit.wishes.priority)
        message = verdict.reason
        if slo is not None and verdict.best_ttft_s is not None:
            message = (
                f"no replica is sure to begin to answer within {slo.ttft_s:g} s, the soonest is"
                f" predicted to in {verdict.best_ttft_s:.1f} s: {verdict.reason}"
            )
        if contract is not None and self._overflow is not None:
            message += f"; it may not overflow: {contract}"
        told = {"priority": visit.wishes.priority, "verdict": "refused", "reason": message}
        with contextlib.suppress(Exception):  # an explanation must not change the answer
            self._router.refused(visit.request, visit.prompt, considered.placement, told)
        return ApiError(
            429,
            f"{message}; try again in {verdict.retry_after_s} s",
            code="over_capacity",
            retry_after=verdict.retry_after_s,
        )
