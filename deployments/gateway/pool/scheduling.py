"""Schedules a pool's requests.

`autoscaling.admission.pool_scheduler` decides. This module waits for turns, and turns a decision
into an attempt on an engine or an error for the client. A request is decided once, before its first
attempt. Admitted requests are not rejected later, unless the pool loses its last replica before the
answer begins. Admission fails open: an error while deciding admits the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from starlette.types import Receive

from autoscaling.admission.admission import Verdict
from autoscaling.admission.cheapest import PoolOffer, cheapest
from autoscaling.admission.scheduling_request import Attempt, Decision, SchedulingRequest
from deployments.gateway.attempt.cached_prompt import Prefill
from deployments.gateway.attempt.engine_attempt import (
    DecideAnew,
    EngineAttempt,
    OutageWatch,
)
from deployments.gateway.attempt.prefill import prefilled
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import PoolRequest, nobody_leaves
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.overflow_contract import renamed
from deployments.gateway.pool.rejections import cannot_overflow, rejection, why_rejected
from deployments.gateway.record.pool_reporter import Admitted
from router.choice.cost import Elsewhere
from router.choice.placement import BLIND, reusable_tokens

logger = logging.getLogger("ray.serve")

# The assumed tokens of an answer without `max_tokens`. It matters only if one pool has the cheaper
# prompts and another the cheaper answers.
USUAL_TOKENS = 256
# A pool, and the request as that pool reads it.
Read = tuple[GatewayPool, PoolRequest]


async def schedule(
    pool: GatewayPool, request: PoolRequest, receive: Receive, is_again: bool = False
) -> EngineAttempt:
    """Return the attempt that serves a request, after any wait for its turn.

    `is_again`: decide a second time, because the pool has lost its last replica. Raises
    ClientDisconnect if the client leaves meanwhile, and ApiError:

        429   it cannot be served within its SLO
        503   no replica is up, and none will be before its deadline
        400   it demands an overflow that is not possible
    """
    try:
        decision = await _decide(pool, request, is_again)
    except Exception:  # must not fail a request that an engine could serve
        logger.exception(
            "failed to decide about request %s; admitting it", request.engine.request_id
        )
        request.engine.record.admitted("admitted")
        attempt = pool.scheduler.place_anywhere(_request_of(pool, request, None))
        return _attempt(pool, request, attempt, Verdict("admitted", "deciding failed"))
    if decision.verdict.kind == "overflowed":
        assert pool.overflow is not None
        return await _overflow(pool, pool.overflow, request, decision, receive)
    return await _carry_out(pool, request, decision, receive)


def choose(reads: Sequence[Read]) -> Read:
    """Return the pool that serves a request, of those that compete for it by price.

    The request was read for each. The pools' offers are in its record.
    """
    record = reads[0][1].engine.record
    try:
        offers = [_offer(*each) for each in reads]
        chosen, by = cheapest(offers)
        index = random.randrange(len(reads)) if chosen is None else chosen
    except Exception:  # must not fail a request that an engine could serve
        logger.exception(
            "failed to select a pool for request %s; using the first one", record.facts.request_id
        )
        return reads[0]
    record.offered(by, tuple(map(asdict, offers)))
    return reads[index]


def _offer(pool: GatewayPool, request: PoolRequest) -> PoolOffer:
    if (found := pool.scheduler.offer(_request_of(pool, request, None))) is None:
        return PoolOffer(pool.name, None, False, _price(request, 0, pool))
    replica, ttft_s, is_in_time = found
    return PoolOffer(pool.name, ttft_s, is_in_time, _price(request, replica.cached_tokens, pool))


def _price(request: PoolRequest, cached_tokens: int, pool: GatewayPool) -> float:
    """Return the price of a request with this many cached prompt tokens."""
    price, parameters = pool.settings.price, request.parameters
    assert price is not None, "the fleet file requires it"
    most = USUAL_TOKENS if parameters.max_tokens is None else parameters.max_tokens
    cached = min(cached_tokens, request.tokens)
    cached_price = price.prompt if price.cached is None else price.cached
    prompt = (request.tokens - cached) * price.prompt + cached * cached_price
    return (prompt + most * parameters.sequences * price.output) / 1e6


def place_copy(pool: GatewayPool, request: PoolRequest, most_wait_s: float) -> EngineAttempt | None:
    """Place a mirrored request, whose answer no client waits for.

    None: no engine is predicted to begin it within `most_wait_s` seconds, or other requests wait
    for the pool.
    """
    copied = _request_of(pool, request, None)
    considered = pool.scheduler.consider(copied)
    soon = (n for n, found in enumerate(considered.ranked) if found.wait_s <= most_wait_s)
    index = next(soon, None)
    if pool.is_waited_for or index is None or considered.placement.policy == BLIND:
        return None
    attempt = pool.scheduler.take(copied, considered, index)
    return _attempt(pool, request, attempt, Verdict("admitted", "its engine begins it soon"))


async def _decide(pool: GatewayPool, request: PoolRequest, is_again: bool) -> Decision:
    no_overflow: str | None = "no overflow model is configured for this model"
    if pool.overflow is not None:
        no_overflow = pool.overflow.unfit(request, pool.settings)
    case = replace(_request_of(pool, request, no_overflow), is_again=is_again)
    considered = pool.scheduler.consider(case)
    if pool.scheduler.needs_warm(case, considered):
        began = asyncio.get_running_loop().time()
        await pool.parts.promotions.promote(case.arrived)
        request.engine.record.promoted(asyncio.get_running_loop().time() - began)
        considered = pool.scheduler.consider(case)
    return pool.scheduler.decide(case, considered)


async def _carry_out(
    pool: GatewayPool, request: PoolRequest, decision: Decision, receive: Receive
) -> EngineAttempt:
    """Carry out a decision other than an overflow: attempt, wait or reject."""
    _count(pool, request, decision)
    anew = _anew(pool, request, decision)
    if decision.evicted is not None:
        pool.parts.turns.reject(decision.evicted)
    if (waiter := decision.waiter) is not None:
        _explain(pool, request, decision, decision.verdict.reason)
        pool.feeds.loads.want()  # read loads often from now on
        turn = await pool.parts.turns.of(waiter, receive)
        if turn == "anew":
            return await schedule(pool, request, receive, is_again=True)
        if turn == "rejected":
            decision = decision.rejected_after_all()
            _count(pool, request, decision)
            raise _rejected(pool, request, decision)
        request.engine.record.waited(turn.placed_at - waiter.since)
        request.engine.record.admitted("admitted")
        verdict = replace(decision.verdict, kind="admitted", reason="its turn came", outage=False)
        return _attempt(pool, request, turn, verdict, anew)
    if decision.attempt is None:
        raise _rejected(pool, request, decision)
    return _attempt(pool, request, decision.attempt, decision.verdict, anew)


async def _overflow(
    origin: GatewayPool,
    pool: GatewayPool,
    request: PoolRequest,
    decision: Decision,
    receive: Receive,
) -> EngineAttempt:
    """Serve a request for `origin` in `pool`, at the replica with the earliest first token.

    Raises the errors of `schedule`. It may still reject the request: its prompt may be too long in
    this model's tokens, or other requests may have filled the pool while it was read.
    """
    model = pool.settings.served_model_name
    engine = renamed(request.engine, model)
    fields = {**request.fields, "model": model}
    here = await pool.read(engine, fields, request.headers, request.options, receive)
    unfit = pool.unfit(here, origin.settings) if here.prompt.known else None
    final = pool.scheduler.stand_in(
        _request_of(pool, here, None), origin.scheduler, decision, unfit
    )
    if final.verdict.kind != "overflowed":
        return await _carry_out(origin, request, final, receive)
    assert final.attempt is not None
    _count(origin, request, final)
    pool.parts.admission_metrics.decided(request.options.priority, "admitted")
    anew = _anew(origin, request, decision)
    return _attempt(pool, here, final.attempt, final.verdict, anew)


def _rejected(pool: GatewayPool, request: PoolRequest, decision: Decision) -> ApiError:
    """Return the error for the client of a rejected request, and explain the rejection."""
    if (error := cannot_overflow(decision)) is not None:
        return error
    slo = pool.settings.slo.by_class().get(request.options.priority)
    why = why_rejected(decision, slo, pool.overflow_model)
    _explain(pool, request, decision, why)
    return rejection(decision, why)


def _explain(pool: GatewayPool, request: PoolRequest, decision: Decision, why: str) -> None:
    with contextlib.suppress(Exception):  # an explanation must not change the answer
        waited_s = asyncio.get_running_loop().time() - request.engine.arrived
        verdict = decision.verdict
        admitted = Admitted(request.options.priority, verdict.kind, why, waited_s, verdict.outage)
        pool.reporter.unplaced(request, decision.considered.placement, admitted)


def _count(pool: GatewayPool, request: PoolRequest, decision: Decision) -> None:
    verdict, priority = decision.verdict, request.options.priority
    request.engine.record.admitted(verdict.kind)
    pool.parts.admission_metrics.decided(priority, verdict.kind)
    if verdict.outage:
        pool.parts.admission_metrics.decided_in_outage(priority, verdict.kind)


def _anew(pool: GatewayPool, request: PoolRequest, decision: Decision) -> DecideAnew | None:
    """Return a callback that decides again if the last replica is lost; None: decide only once."""
    if decision.request.is_again or decision.verdict.outage:
        return None
    return partial(schedule, pool, request, nobody_leaves, is_again=True)


def _attempt(
    pool: GatewayPool,
    request: PoolRequest,
    attempt: Attempt,
    verdict: Verdict,
    anew: DecideAnew | None = None,
) -> EngineAttempt:
    waited_s = asyncio.get_running_loop().time() - request.engine.arrived
    priority, reason = request.options.priority, verdict.reason
    admitted = Admitted(priority, verdict.kind, reason, waited_s, verdict.outage)
    return EngineAttempt(
        scheduler=pool.scheduler,
        reporter=pool.reporter,
        transport=pool.transport,
        moves=pool.parts.moves,
        request=request,
        attempt=attempt,
        admitted=admitted,
        outage=anew and OutageWatch(pool.next_outage, anew),
        prefill=_prefill(pool, request, attempt),
    )


def _elsewhere(pool: GatewayPool, request: PoolRequest) -> Elsewhere | None:
    """Return the replica of the prefill pool that would compute the prompt; None: there is none."""
    prefill, settings = pool.prefill, pool.settings.prefill
    if prefill is None or settings is None or request.prefill is None:
        return None
    placement = prefill.scheduler.consider(_request_of(prefill, request.prefill, None)).placement
    if (chosen := placement.chosen) is None or placement.policy == BLIND:
        return None
    load = prefill.scheduler.board.load_of(chosen.replica_id)
    if load is None or not load.peer or load.is_avoided:
        return None
    tokens = reusable_tokens(request.tokens, pool.scheduler.board.segment_tokens)
    ready_s = chosen.predicted_ttft_s
    return Elsewhere(chosen.replica_id, load.peer, tokens, ready_s, settings.always)


def _prefill(pool: GatewayPool, request: PoolRequest, attempt: Attempt) -> Prefill | None:
    """Return what lets the prefill pool compute the prompt; None: the attempt's engine does."""
    prefill, prompt = pool.prefill, request.prefill
    if attempt.chosen is None or not attempt.chosen.prefills_elsewhere:
        return None
    if prefill is None or prompt is None:  # the settings have changed since
        return None

    def address_of(replica_id: str) -> str:
        load = prefill.scheduler.board.load_of(replica_id)
        return load.peer if load else ""

    return partial(prefilled, partial(_place_prompt, prefill, prompt), address_of)


def _place_prompt(pool: GatewayPool, request: PoolRequest) -> EngineAttempt | None:
    """Place a prompt of another pool. Its request was admitted there, so it is not rejected here.
    None: no replica is up."""
    asked = _request_of(pool, request, None)
    considered = pool.scheduler.consider(asked)
    if not considered.ranked or considered.placement.policy == BLIND:
        return None
    verdict = Verdict("admitted", "it was admitted by the pool that answers")
    Decision(asked, considered, verdict).count_in(pool.scheduler.demand)
    return _attempt(pool, request, pool.scheduler.take(asked, considered, 0), verdict)


def _request_of(
    pool: GatewayPool, request: PoolRequest, no_overflow: str | None
) -> SchedulingRequest:
    options = request.options
    return SchedulingRequest(
        prompt=replace(request.prompt.placement, elsewhere=_elsewhere(pool, request)),
        depths=request.prompt.depths,
        arrived=request.engine.arrived,
        tenant=request.engine.tenant,
        priority=options.priority,
        policy=options.policy,
        overflow=options.overflow,
        no_overflow=no_overflow,
        sequences=request.parameters.sequences,
        deadline=request.engine.deadline,
        tiers=request.prompt.tiers,
    )
