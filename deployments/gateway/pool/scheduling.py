"""How one pool's request finds its engine.

`autoscaling.pool_scheduler` decides; this waits where it says to wait, and turns what it says into
an attempt on an engine or an answer to the client. A request is decided once, before its first
attempt: one that was admitted is not rejected later, unless the pool's last replica is lost before
it has an answer; and what fails while deciding admits it.
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

from autoscaling.admission import Verdict
from autoscaling.cheapest import PoolOffer, cheapest
from autoscaling.scheduling import Attempt, Decision, SchedulingRequest
from deployments.gateway.attempt.engine_attempt import DecideAnew, EngineAttempt, OutageWatch
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import PoolRequest, nobody_leaves
from deployments.gateway.pool.overflow_contract import renamed
from deployments.gateway.pool.pool import GatewayPool
from deployments.gateway.pool.refusals import cannot_overflow, refusal, why_refused
from deployments.gateway.record.pool_reporter import AdmissionVerdict, Admitted
from router.placement import BLIND

logger = logging.getLogger("ray.serve")

# Tokens of an answer without `max_tokens`. They matter only where the prices of prompts order pools
# otherwise than those of answers.
USUAL_TOKENS = 256
# A request as it is in this pool.
Read = tuple[GatewayPool, PoolRequest]


async def schedule(
    pool: GatewayPool, request: PoolRequest, receive: Receive, is_again: bool = False
) -> EngineAttempt:
    """Where the request goes, however long it has to wait for that.

    Raises ApiError: 429 when it cannot be served within its SLO, 503 when no replica is up and
    none will be before its deadline, 400 for an overflow that it asks for and cannot have;
    ClientDisconnect when `receive` says so while it waits.
    """
    try:
        decision = await _decide(pool, request, is_again)
    except Exception:  # deciding must not fail what an engine could serve
        logger.exception("request %s is admitted undecided", request.engine.request_id)
        request.engine.record.verdict = "admit"
        attempt = pool.scheduler.place_anywhere(_request_of(request, None))
        return _attempt(pool, request, attempt, Verdict("admit", "deciding failed"))
    if decision.verdict.kind == "overflow":
        assert pool.overflow is not None
        return await _overflow(pool, pool.overflow, request, decision, receive)
    return await _carry_out(pool, request, decision, receive)


def place_unread(pool: GatewayPool, request: PoolRequest, failed: frozenset[str]) -> EngineAttempt:
    """Where another engine may continue an answer that this gateway did not begin."""
    attempt = pool.scheduler.place(_request_of(request, None), failed)
    return _attempt(pool, request, attempt, Verdict("admit", "it was let in before"))


def choose(reads: Sequence[Read]) -> Read:
    """Which of a model's pools serves a request, where they compete for it. It was read for each;
    its record tells what each offers."""
    record = reads[0][1].engine.record
    try:
        offers = [_offer(*each) for each in reads]
        chosen, record.routed_by = cheapest(offers)
        index = random.randrange(len(reads)) if chosen is None else chosen
    except Exception:  # choosing must not fail what an engine could serve
        logger.exception("request %s goes to the first pool of its model", record.request_id)
        return reads[0]
    record.offers = tuple(map(asdict, offers))
    return reads[index]


def _offer(pool: GatewayPool, request: PoolRequest) -> PoolOffer:
    if (found := pool.scheduler.offer(_request_of(request, None))) is None:
        return PoolOffer(pool.name, None, False, _price(request, 0, pool))
    replica, ttft_s, is_in_time = found
    return PoolOffer(pool.name, ttft_s, is_in_time, _price(request, replica.cached_tokens, pool))


def _price(request: PoolRequest, cached_tokens: int, pool: GatewayPool) -> float:
    """With so many of its prompt's tokens cached."""
    price, parameters = pool.settings.price, request.parameters
    assert price is not None, "the fleet file asks for it"
    most = USUAL_TOKENS if parameters.max_tokens is None else parameters.max_tokens
    cached = min(cached_tokens, request.tokens)
    cached_price = price.prompt if price.cached is None else price.cached
    prompt = (request.tokens - cached) * price.prompt + cached * cached_price
    return (prompt + most * parameters.sequences * price.output) / 1e6


def place_copy(pool: GatewayPool, request: PoolRequest, most_wait_s: float) -> EngineAttempt | None:
    """Where a request goes that nobody waits for; None: no engine is known to begin it within that
    time, or others wait for the pool."""
    copied = _request_of(request, None)
    considered = pool.scheduler.consider(copied)
    soon = (n for n, found in enumerate(considered.ranked) if found.wait_s <= most_wait_s)
    index = next(soon, None)
    if pool.is_waited_for or index is None or considered.placement.policy == BLIND:
        return None
    attempt = pool.scheduler.take(copied, considered, index)
    return _attempt(pool, request, attempt, Verdict("admit", "its engine begins it soon"))


async def _decide(pool: GatewayPool, request: PoolRequest, is_again: bool) -> Decision:
    no_overflow: str | None = "the pool has no overflow pool"
    if pool.overflow is not None:
        no_overflow = pool.overflow.unfit(request, pool.settings)
    case = replace(_request_of(request, no_overflow), is_again=is_again)
    considered = pool.scheduler.consider(case)
    if pool.scheduler.needs_warm(case, considered):
        began = asyncio.get_running_loop().time()
        await pool.parts.promotions.promote(case.arrived)
        phases = request.engine.record.phases
        phases.promotion_s = asyncio.get_running_loop().time() - began
        considered = pool.scheduler.consider(case)
    return pool.scheduler.decide(case, considered)


async def _carry_out(
    pool: GatewayPool, request: PoolRequest, decision: Decision, receive: Receive
) -> EngineAttempt:
    """What was decided, where this pool is to serve the request or none is."""
    _count(pool, request, decision)
    anew = _anew(pool, request, decision)
    if decision.evicted is not None:
        pool.parts.turns.refuse(decision.evicted)
    if (waiter := decision.waiter) is not None:
        _explain(pool, request, decision, "queued", decision.verdict.reason)
        pool.feeds.loads.want()  # from now on often
        turn = await pool.parts.turns.of(waiter, receive)
        if turn == "anew":
            return await schedule(pool, request, receive, is_again=True)
        if turn == "refused":
            decision = decision.refused_after_all()
            _count(pool, request, decision)
            raise _refused(pool, request, decision)
        request.engine.record.phases.wait_s += turn.placed_at - waiter.since
        verdict = replace(decision.verdict, reason="its turn came", outage=False)
        return _attempt(pool, request, turn, verdict, anew)
    if decision.attempt is None:
        raise _refused(pool, request, decision)
    return _attempt(pool, request, decision.attempt, decision.verdict, anew)


async def _overflow(
    origin: GatewayPool,
    pool: GatewayPool,
    request: PoolRequest,
    decision: Decision,
    receive: Receive,
) -> EngineAttempt:
    """Serve a request for `origin` in `pool`, in its model, where that is soonest.

    What it raises is as of `schedule`: also for one that proves too long in this model's tokens,
    and for one that others came before while it was read.
    """
    model = pool.settings.served_model_name
    engine = renamed(request.engine, model)
    fields = {**request.fields, "model": model}
    here = await pool.read(engine, fields, request.headers, request.options, receive)
    unfit = pool.unfit(here, origin.settings) if here.prompt.known else None
    final = pool.scheduler.stand_in(_request_of(here, None), origin.scheduler, decision, unfit)
    if final.verdict.kind != "overflow":
        return await _carry_out(origin, request, final, receive)
    assert final.attempt is not None
    _count(origin, request, final)
    pool.parts.admission_metrics.decided(request.options.priority, "admit")
    anew = _anew(origin, request, decision)
    return _attempt(pool, here, final.attempt, final.verdict, anew)


def _refused(pool: GatewayPool, request: PoolRequest, decision: Decision) -> ApiError:
    """Return the error for the client of a rejected request, and explain the rejection."""
    if (error := cannot_overflow(decision)) is not None:
        return error
    slo = pool.settings.slo.by_class().get(request.options.priority)
    why = why_refused(decision, slo, pool.overflow_model)
    _explain(pool, request, decision, "refused", why)
    return refusal(decision, why)


def _explain(
    pool: GatewayPool, request: PoolRequest, decision: Decision, decided: AdmissionVerdict, why: str
) -> None:
    with contextlib.suppress(Exception):  # an explanation must not change the answer
        waited_s = asyncio.get_running_loop().time() - request.engine.arrived
        outage = decision.verdict.outage
        admitted = Admitted(request.options.priority, decided, why, waited_s, outage)
        pool.reporter.unplaced(request, decision.considered.placement, admitted)


def _count(pool: GatewayPool, request: PoolRequest, decision: Decision) -> None:
    verdict, priority = decision.verdict, request.options.priority
    request.engine.record.verdict = verdict.kind
    pool.parts.admission_metrics.decided(priority, verdict.kind)
    if verdict.outage:
        pool.parts.admission_metrics.decided_in_outage(priority, verdict.kind)


def _anew(pool: GatewayPool, request: PoolRequest, decision: Decision) -> DecideAnew | None:
    """How it is decided once more, if the replica that it goes to now was the last; once."""
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
    decided: AdmissionVerdict = "overflowed" if verdict.kind == "overflow" else "admitted"
    admitted = Admitted(request.options.priority, decided, verdict.reason, waited_s, verdict.outage)
    return EngineAttempt(
        pool.scheduler,
        pool.reporter,
        pool.transport,
        pool.parts.moves,
        request,
        attempt,
        admitted,
        anew and OutageWatch(pool.next_outage, anew),
    )


def _request_of(request: PoolRequest, no_overflow: str | None) -> SchedulingRequest:
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
        request.parameters.sequences,
        request.engine.deadline,
    )
