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
from typing import Any, Literal, NamedTuple

import aiohttp

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, Computed, SchedulingRequest
from deployments.gateway.api.response_headers import (
    ADMISSION_HEADER,
    CACHED_TOKENS_HEADER,
    ENGINE_TTFT_HEADER,
    INDEX_HEADER,
    MODEL_HEADER,
    POLICY_HEADER,
    PREDICTED_CACHED_TOKENS_HEADER,
    PREDICTED_TTFT_HEADER,
    PROMPT_TOKENS_HEADER,
    TTFT_HEADER,
)
from deployments.gateway.attempt.cached_prompt import CachedPrompt, Prefill
from deployments.gateway.attempt.moves import Moves, Offer
from deployments.gateway.attempt.transport import Reservation, Route, SendRequest, Transport
from deployments.gateway.intake.request import PoolRequest
from deployments.gateway.record.pool_reporter import (
    Admitted,
    Outcome,
    PlacementDecision,
    PoolReporter,
)
from deployments.wire.confirmation import count_in
from deployments.wire.headers import LOAD_HEADER
from observability.traces.request_record import Explained, Fact
from router.board.load import LoadReport
from router.choice.placement import Placement

logger = logging.getLogger("ray.serve")

# Why an engine resumes an answer: the previous engine was lost, or is leaving.
ResumeReason = Literal["resumed", "moved"]

DecideAnew = Callable[[], Awaitable["EngineAttempt"]]


class OutageWatch(NamedTuple):
    """When `began` is done, the pool has no replica; `decide_anew` schedules the request again."""

    began: asyncio.Future[None]
    decide_anew: DecideAnew


class EngineAttempt:
    """A placed try, after the try `before`. `request` names this pool's model, which may be the
    overflow pool's. `moves` offers the answer to other engines when this one leaves. `ticket` names
    the try on its replica. `prefill`: see `CachedPrompt`."""

    def __init__(
        self,
        *,
        scheduler: PoolScheduler,
        reporter: PoolReporter,
        transport: Transport,
        moves: Moves,
        request: PoolRequest,
        attempt: Attempt,
        admitted: Admitted,
        outage: OutageWatch | None,
        before: EngineAttempt | None = None,
        prefill: Prefill | None = None,
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
        self._resumed = False
        self.chosen = chosen = attempt.chosen
        self.cached = CachedPrompt(chosen, prefill)
        self._transport = transport
        self._moves = moves
        self.request = request.engine
        self.ticket = attempt.ticket
        self._route = Route(
            ranked_ids=attempt.placement.replica_ids,
            best_url=scheduler.board.direct_url(chosen.replica_id) if chosen else None,
            ticket=attempt.ticket,
            request_id=request.engine.request_id,
            is_alive=scheduler.board.is_live,
            may_overtake=before is not None,
            outage=outage.began if outage else None,
            sequences=attempt.request.sequences,
            uncached_tokens=max(0, attempt.request.prompt.prompt_tokens - self.cached.expected),
            queue_s=scheduler.queue_s,
        )
        # several tries share the first decision: later ones omit replicas that failed
        if before is None:
            engine, placement = request.engine, attempt.placement
            placed = PlacementDecision(reporter, engine.model, request.prompt, placement, admitted)
            engine.record.decided(placed)

    def exchange(
        self, send: SendRequest
    ) -> AbstractAsyncContextManager[tuple[Reservation, aiohttp.ClientResponse]]:
        """Send the request to a replica. Yields the reservation and the response. Raises as
        `Transport.exchange`."""
        return self._transport.exchange(send, self._route)

    def facts(self) -> Mapping[str, Fact | None]:
        """Return the placement and its reasons, for the trace."""
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
        """Return the next try, on a replica that is not in `failed`.

        It resumes an answer of `tokens` tokens; None: it begins the answer again. There is always
        a try: admitted requests are never rejected later.
        """
        attempt = self._scheduler.place(self._scheduling_request(tokens), failed)
        if tokens is None:
            self.request.record.retried(attempt.placed_at - self._attempt.placed_at)
        return EngineAttempt(
            scheduler=self._scheduler,
            reporter=self._reporter,
            transport=self._transport,
            moves=self._moves,
            request=self._pool_request,
            attempt=attempt,
            admitted=self._admitted,
            outage=self._outage,
            before=self,
        )

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> EngineAttempt | None:
        """Return a try on another engine while this one resumes; None: no engine is predicted to
        produce a token within `within_s` seconds."""
        request, board = self._scheduling_request(tokens), self._scheduler.board
        best = next(iter(self._scheduler.consider(request, avoid).ranked), None)
        if best is None or best.predicted_ttft_s > within_s or board.is_avoided(best.replica_id):
            return None
        return self.again(avoid, tokens)

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """Before the first token, call `offer` while the replica is leaving, to begin elsewhere."""
        if not self._pool_request.parameters.stream:  # the headers arrive with the whole answer
            return nullcontext()
        return self._moves.offering(replica_id, offer)

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        """After the first token, call `offer` while the replica is leaving, to move the answer."""
        return self._moves.offering(replica_id, offer)

    def is_leaving(self, replica_id: str) -> bool:
        """Return whether this replica reports that it is leaving."""
        return self._scheduler.board.is_leaving(replica_id)

    def _scheduling_request(self, tokens: int | None) -> SchedulingRequest:
        request = self._attempt.request
        request = replace(request, prompt=replace(request.prompt, elsewhere=None))
        if tokens is None:
            return request
        # the answer is computed again after the prompt, and no engine has cached it
        prompt_tokens = self._pool_request.prompt.placement.prompt_tokens + tokens
        return replace(request, prompt=replace(request.prompt, prompt_tokens=prompt_tokens))

    async def elsewhere(self) -> EngineAttempt:
        """Schedule the request again, because no replica is up. Raises ApiError."""
        assert self._outage is not None  # without it, `exchange` waits for a replica
        return await self._outage.decide_anew()

    def answered(
        self, reservation: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        """Record the first token, in loop time. Return headers for the client."""
        self._served_by, self._first_token_at = reservation.replica_id, first_token_at
        record = self.request.record
        outcome = Outcome(
            reservation.replica_id,
            ttft_s=first_token_at - self.request.arrived,
            engine_s=first_token_at - self._attempt.placed_at,
            prompt_tokens=count_in(engine_headers, PROMPT_TOKENS_HEADER),
            cached_tokens=count_in(engine_headers, CACHED_TOKENS_HEADER),
            prefilled=self.cached.prefilled,
        )
        record.first_token(
            self._reporter.pool,
            outcome.replica_id,
            ttft_s=outcome.ttft_s,
            engine_s=outcome.engine_s,
        )
        record.counted(outcome.prompt_tokens, outcome.cached_tokens)
        # later, because the client waits for its first token
        asyncio.get_running_loop().call_soon(self._learn, outcome, _report(engine_headers))
        return _headers(self._pool_request, self._attempt.placement, self._admitted, outcome)

    def resumed(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        reason: ResumeReason,
        facts: Mapping[str, Any],
    ) -> None:
        """Record that this engine resumes another's answer. The explanation gets `facts`, and the
        predicted time.

        The predictor learns nothing, because predictions and SLOs are for an answer's first token.
        """
        self._served_by = reservation.replica_id
        self.request.record.placed(reservation.replica_id)
        self._first_token_at = asyncio.get_running_loop().time()
        self._resumed = True
        report, replica_id = _report(engine_headers), reservation.replica_id
        served = self._attempt.placement.candidate(replica_id)
        predicted_s = served.predicted_ttft_s if served else None
        facts = {"replica": replica_id, **facts, "predicted_s": predicted_s}
        asyncio.get_running_loop().call_soon(self._learn_resumed, report, reason, facts)

    def ended(self) -> None:
        """Record that the try is over, with or without success."""
        record, computed = self.request.record, None
        if self._served_by is not None:
            prompt, cached = record.prompt_tokens, record.cached_tokens
            tokens = None if prompt is None or cached is None else max(0, prompt - cached)
            if self._resumed:  # the counts are those of the first engine
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
            explanation = self._reporter.answered(
                self.request, self._pool_request.prompt, placement, self._admitted, outcome
            )
            self.request.record.decided(Explained(explanation))
        except Exception:  # a failed explanation must not cost the answer
            logger.exception(
                "failed to record the explanation of request %s", self.request.request_id
            )
        self._attempt = self._attempt.answering()

    def _learn_resumed(
        self, report: LoadReport | None, reason: ResumeReason, facts: Mapping[str, Any]
    ) -> None:
        try:
            self._scheduler.answered(self._attempt, facts["replica"], report)
            record = self.request.record
            if record.decision is not None:
                record.decided(Explained({**record.decision.explained(), reason: facts}))
        except Exception:
            logger.exception("failed to explain how request %s resumed", self.request.request_id)
        self._attempt = self._attempt.answering()

    def _is_observation(self, outcome: Outcome) -> bool:
        """Return whether the measured time can correct predictions.

        The cause of a failed try may slow the next one. A request that another replica served has
        waited for both. A grammar's trial takes extra time. Another pool's time is not this one's.
        """
        chosen = self._attempt.chosen
        served = chosen is not None and chosen.replica_id == outcome.replica_id
        tried = self._before is not None or self._pool_request.prompt.placement.needs_trial
        tried = tried or self.cached.prefilled is not None
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
    headers: dict[str, str] = {
        POLICY_HEADER: placement.policy,
        MODEL_HEADER: request.engine.model,
        ADMISSION_HEADER: admitted.verdict,
        TTFT_HEADER: f"{outcome.ttft_s * 1000:.1f}",
        ENGINE_TTFT_HEADER: f"{outcome.engine_s * 1000:.1f}",
        INDEX_HEADER: f"{request.prompt.lookup_s * 1000:.2f}",
    }
    if served is not None:
        headers[PREDICTED_TTFT_HEADER] = f"{served.predicted_ttft_s * 1000:.1f}"
        headers[PREDICTED_CACHED_TOKENS_HEADER] = str(served.cached_tokens)
    if outcome.cached_tokens is not None:
        headers[CACHED_TOKENS_HEADER] = str(outcome.cached_tokens)
    if outcome.prompt_tokens is not None:
        headers[PROMPT_TOKENS_HEADER] = str(outcome.prompt_tokens)
    return headers
