"""One try of an admitted request on a pool's engine: its placement, and the result for scheduling.

The scheduler and the explanation learn from the engine's headers. A failure to do so is logged and
never costs the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp

from autoscaling.pool_scheduler import PoolScheduler
from autoscaling.scheduling import Attempt, Computed, SchedulingRequest
from deployments.gateway.attempt.any_attempt import ContinueReason
from deployments.gateway.attempt.moves import Moves, Offer
from deployments.gateway.attempt.transport import Reservation, Route, SendRequest, Transport
from deployments.gateway.intake.request import PoolRequest
from deployments.gateway.intake.request_options import POLICY_HEADER
from deployments.gateway.record.pool_reporter import Admitted, Outcome, PoolReporter
from deployments.wire.confirmation import count_in
from deployments.wire.headers import CACHED_TOKENS_HEADER, LOAD_HEADER, PROMPT_TOKENS_HEADER
from observability.request_record import Fact
from router.load import LoadReport
from router.placement import Placement

logger = logging.getLogger("ray.serve")

DecideAnew = Callable[[], Awaitable["EngineAttempt"]]


class OutageWatch(NamedTuple):
    """When `began` is done, the pool has no replica; `decide_anew` schedules the request again."""

    began: asyncio.Future[None]
    decide_anew: DecideAnew


class EngineAttempt:
    """A placed try (`AnyAttempt`), after the try `before`. `request` names this pool's model, which
    may be the overflow pool's. `moves` offers the answer to other engines when this one leaves."""

    def __init__(
        self,
        scheduler: PoolScheduler,
        reporter: PoolReporter,
        transport: Transport,
        moves: Moves,
        request: PoolRequest,
        attempt: Attempt,
        admitted: Admitted,
        outage: OutageWatch | None,
        before: EngineAttempt | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._reporter = reporter
        self._pool_request = request
        self._attempt = attempt
        self._admitted = admitted
        self._outage = outage
        self._before = before
        self._served_by: str | None = None
        self._first_token_at = 0.0
        self._continued = False
        self._explanation: Mapping[str, Any] | None = None
        chosen = attempt.chosen
        self._transport = transport
        self._moves = moves
        self.request = request.engine
        self.expected_cached = chosen.cached_tokens if chosen else 0
        self.path = request.engine.path
        self.had_events = 0
        self.ticket = attempt.ticket
        self._route = Route(
            ranked_ids=attempt.placement.replica_ids,
            best_url=scheduler.board.direct_url(chosen.replica_id) if chosen else None,
            ticket=attempt.ticket,
            is_alive=scheduler.board.is_live,
            may_overtake=before is not None,
            outage=outage.began if outage else None,
        )
        request.engine.record.explain = self.explained

    @property
    def body(self) -> bytes:
        return self.request.engine_body

    def exchange(
        self, send: SendRequest
    ) -> AbstractAsyncContextManager[tuple[Reservation, aiohttp.ClientResponse]]:
        return self._transport.exchange(send, self._route)

    def explained(self) -> Mapping[str, Any]:
        """Return the decision about the request, and the result of its first token if it has one.

        Without a first token, several tries share the first decision: later ones omit replicas that
        failed.
        """
        attempt = self
        while attempt._explanation is None and attempt._before is not None:
            attempt = attempt._before
        if attempt._explanation is not None:
            return attempt._explanation
        prompt, placement = attempt._pool_request.prompt, attempt._attempt.placement
        return self._reporter.decided(attempt.request, prompt, placement, attempt._admitted)

    def facts(self) -> Mapping[str, Fact | None]:
        placement, chosen = self._attempt.placement, self._attempt.chosen
        prompt = self._pool_request.prompt
        return {
            "pool": self._reporter.pool,
            "verdict": self.request.record.verdict,
            "waited_s": self._admitted.waited_s,
            "policy": placement.policy,
            "candidates": len(placement.ranked),
            "index_answered": prompt.depths is not None,
            "index_lookup_s": prompt.lookup_s,
            "prompt_read_s": prompt.read_s,
            "prompt_tokens_counted": prompt.placement.prompt_tokens,
            "chosen_replica": chosen.replica_id if chosen else None,
            "predicted_ttft_s": chosen.predicted_ttft_s if chosen else None,
            "cached_tokens_predicted": chosen.cached_tokens if chosen else None,
        }

    def again(self, failed: frozenset[str], tokens: int | None = None) -> EngineAttempt:
        """As in `AnyAttempt`. There is always a try: admitted requests are never rejected later."""
        attempt = self._scheduler.place(self._scheduling_request(tokens), failed)
        if tokens is None:
            self.request.record.phases.retry_s += attempt.placed_at - self._attempt.placed_at
        return EngineAttempt(
            self._scheduler,
            self._reporter,
            self._transport,
            self._moves,
            self._pool_request,
            attempt,
            self._admitted,
            self._outage,
            before=self,
        )

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> EngineAttempt | None:
        request, board = self._scheduling_request(tokens), self._scheduler.board
        best = next(iter(self._scheduler.consider(request, avoid).ranked), None)
        if best is None or best.predicted_ttft_s > within_s or board.is_avoided(best.replica_id):
            return None
        return self.again(avoid, tokens)

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        if not self._pool_request.parameters.stream:  # the headers arrive with the whole answer
            return nullcontext()
        return self._moves.offering(replica_id, offer)

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return self._moves.offering(replica_id, offer)

    def is_leaving(self, replica_id: str) -> bool:
        return self._scheduler.board.is_leaving(replica_id)

    def _scheduling_request(self, tokens: int | None) -> SchedulingRequest:
        request = self._attempt.request
        if tokens is None:
            return request
        # the answer is computed again after the prompt, and no engine has cached it
        prompt_tokens = self._pool_request.prompt.placement.prompt_tokens + tokens
        return replace(request, prompt=replace(request.prompt, prompt_tokens=prompt_tokens))

    async def elsewhere(self) -> EngineAttempt:
        assert self._outage is not None  # without it, `exchange` waits for a replica
        return await self._outage.decide_anew()

    def answered(
        self, reservation: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        self._served_by, self._first_token_at = reservation.replica_id, first_token_at
        record = self.request.record
        record.served_by, record.replica_id = self._reporter.pool, reservation.replica_id
        record.ttft_s = ttft_s = first_token_at - self.request.arrived
        record.phases.engine_s = engine_s = first_token_at - self._attempt.placed_at
        record.prompt_tokens = count_in(engine_headers, PROMPT_TOKENS_HEADER)
        record.cached_tokens = count_in(engine_headers, CACHED_TOKENS_HEADER)
        outcome = Outcome(
            reservation.replica_id, ttft_s, engine_s, record.prompt_tokens, record.cached_tokens
        )
        # later, because the client waits for its first token
        asyncio.get_running_loop().call_soon(self._learn, outcome, _report(engine_headers))
        return _headers(self._pool_request, self._attempt.placement, self._admitted, outcome)

    def continued(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        reason: ContinueReason,
        facts: Mapping[str, Any],
    ) -> None:
        """As in `AnyAttempt`. The explanation also shows the predicted time.

        The predictor learns nothing, because predictions and SLOs are for an answer's first token.
        """
        self._served_by = self.request.record.replica_id = reservation.replica_id
        self._first_token_at = asyncio.get_running_loop().time()
        self._continued = True
        report, replica_id = _report(engine_headers), reservation.replica_id
        served = self._attempt.placement.candidate(replica_id)
        predicted_s = served.predicted_ttft_s if served else None
        facts = {"replica": replica_id, **facts, "predicted_s": predicted_s}
        asyncio.get_running_loop().call_soon(self._learn_continued, report, reason, facts)

    def ended(self) -> None:
        record, computed = self.request.record, None
        if self._served_by is not None:
            prompt, cached = record.prompt_tokens, record.cached_tokens
            tokens = None if prompt is None or cached is None else max(0, prompt - cached)
            if self._continued:  # the counts are those of the first engine
                tokens = None
            now = asyncio.get_running_loop().time()
            computed = Computed(tokens, now - self._first_token_at)
        self._scheduler.ended(self._attempt, self._served_by, computed)

    def _learn(self, outcome: Outcome, report: LoadReport | None) -> None:
        placement, scheduler = self._attempt.placement, self._scheduler
        try:
            scheduler.answered(self._attempt, outcome.replica_id, report)
            if self._is_observation(outcome):
                scheduler.observed(self._attempt, outcome.engine_s)
            self._explanation = self._reporter.answered(
                self.request, self._pool_request.prompt, placement, self._admitted, outcome
            )
        except Exception:  # a failed explanation must not cost the answer
            logger.exception("request %s is not explained", self.request.request_id)
        self._attempt = self._attempt.answering()

    def _learn_continued(
        self, report: LoadReport | None, reason: ContinueReason, facts: Mapping[str, Any]
    ) -> None:
        try:
            self._scheduler.answered(self._attempt, facts["replica"], report)
            if self._before is not None:
                self._explanation = {**self._before.explained(), reason: facts}
        except Exception:
            logger.exception(
                "the continuation of request %s is not explained", self.request.request_id
            )
        self._attempt = self._attempt.answering()

    def _is_observation(self, outcome: Outcome) -> bool:
        """Return whether the measured time can correct predictions.

        The cause of a failed try may slow the next one. A request that another replica served has
        waited for both. A grammar's trial takes extra time.
        """
        chosen = self._attempt.chosen
        served = chosen is not None and chosen.replica_id == outcome.replica_id
        tried = self._before is not None or self._pool_request.prompt.placement.needs_trial
        return served and not tried and outcome.prompt_tokens is not None


def _report(headers: Mapping[str, str]) -> LoadReport | None:
    try:
        return LoadReport.from_header(headers.get(LOAD_HEADER, ""))
    except ValueError:  # the replica has another release
        return None


def _headers(
    request: PoolRequest, placement: Placement, admitted: Admitted, outcome: Outcome
) -> dict[str, str]:
    """Return the headers for the client."""
    served = placement.candidate(outcome.replica_id)
    headers = {
        POLICY_HEADER: placement.policy,
        "x-antefix-model": request.engine.model,
        "x-antefix-admission": admitted.verdict,
        "x-antefix-ttft-ms": f"{outcome.ttft_s * 1000:.1f}",
        "x-antefix-engine-ttft-ms": f"{outcome.engine_s * 1000:.1f}",
        "x-antefix-index-ms": f"{request.prompt.lookup_s * 1000:.2f}",
    }
    if served is not None:
        headers["x-antefix-predicted-ttft-ms"] = f"{served.predicted_ttft_s * 1000:.1f}"
        headers["x-antefix-cached-tokens-predicted"] = str(served.cached_tokens)
    if outcome.cached_tokens is not None:
        headers[CACHED_TOKENS_HEADER] = str(outcome.cached_tokens)
    if outcome.prompt_tokens is not None:
        headers[PROMPT_TOKENS_HEADER] = str(outcome.prompt_tokens)
    return headers
