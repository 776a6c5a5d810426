"""One try at a request that was let in: where it goes, and what its answer tells."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

from autoscaling.pool_scheduler import PoolScheduler
from autoscaling.scheduling import Attempt, Computed, SchedulingRequest
from deployments.gateway.attempt.any_attempt import WentOn
from deployments.gateway.attempt.moves import Moves, Offer
from deployments.gateway.attempt.transport import Reservation, Route, Transport
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
    """`began` is done when the pool has no replica any more, and `decide_anew` says what becomes of
    the request then."""

    began: asyncio.Future[None]
    decide_anew: DecideAnew


class EngineAttempt:
    """`request` is what that engine gets: another model's, where the request overflowed.
    `moves` has its answer go on elsewhere, when that engine is leaving."""

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
        self._goes_on = False
        self._explanation: Mapping[str, Any] | None = None
        chosen = attempt.chosen
        self.transport = transport
        self._moves = moves
        self.request = request.engine
        self.expected_cached = chosen.cached_tokens if chosen else 0
        self.path = request.engine.path
        self.had_events = 0
        self.route = Route(
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
        """What the engine is sent."""
        return self.request.engine_body

    def explained(self) -> Mapping[str, Any]:
        """What was decided about the request, and what came of its first token if it had one.

        Of several tries without one, the first decision: later ones leave out what has failed.
        """
        attempt = self
        while attempt._explanation is None and attempt._before is not None:
            attempt = attempt._before
        if attempt._explanation is not None:
            return attempt._explanation
        prompt, placement = attempt._pool_request.prompt, attempt._attempt.placement
        return self._reporter.decided(attempt.request, prompt, placement, attempt._admitted)

    def facts(self) -> Mapping[str, Fact | None]:
        """Where it is placed and why, for its trace."""
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
        """The next try, elsewhere: one that was let in is not refused any more.

        `tokens`: of an answer that is to be gone on with, which are computed again after the
        prompt's; None: the answer begins anew.
        """
        attempt = self._scheduler.place(self._asked(tokens), failed)
        if tokens is None:
            self.request.record.phases.retry_s += attempt.placed_at - self._attempt.placed_at
        return EngineAttempt(
            self._scheduler,
            self._reporter,
            self.transport,
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
        """The next try of an answer of so many tokens, or None, whose engine has it still.

        None: no replica but those to `avoid` would go on with it `within_s`, as far as is known.
        """
        request, board = self._asked(tokens), self._scheduler.board
        best = next(iter(self._scheduler.consider(request, avoid).ranked), None)
        if best is None or best.predicted_ttft_s > within_s or board.is_avoided(best.replica_id):
            return None
        return self.again(avoid, tokens)

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        if not self._pool_request.parameters.stream:  # its headers come with all of it
            return nullcontext()
        return self._moves.offering(replica_id, offer)

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return self._moves.offering(replica_id, offer)

    def is_leaving(self, replica_id: str) -> bool:
        return self._scheduler.board.is_leaving(replica_id)

    def _asked(self, tokens: int | None) -> SchedulingRequest:
        request = self._attempt.request
        if tokens is None:
            return request
        # nobody else has made these, so that the prompt's keys say all that may be cached
        prompt_tokens = self._pool_request.prompt.placement.prompt_tokens + tokens
        return replace(request, prompt=replace(request.prompt, prompt_tokens=prompt_tokens))

    async def elsewhere(self) -> EngineAttempt:
        """What is decided anew after NoReplicaUp, before anything is answered. Raises ApiError."""
        assert self._outage is not None  # else it waits for any replica
        return await self._outage.decide_anew()

    def answered(
        self, reservation: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        """The first token came, at that time of the loop's clock; headers for the client."""
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
        # the client has waited for its first token long enough
        asyncio.get_running_loop().call_soon(self._learn, outcome, _report(engine_headers))
        return _headers(self._pool_request, self._attempt.placement, self._admitted, outcome)

    def went_on(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        why: WentOn,
        facts: Mapping[str, Any],
    ) -> None:
        """As of `AnyAttempt`; the explanation also says what was predicted.

        Nothing is learned of it: what was predicted and promised is the time to a first token.
        """
        self._served_by = self.request.record.replica_id = reservation.replica_id
        self._first_token_at = asyncio.get_running_loop().time()
        self._goes_on = True
        report, replica_id = _report(engine_headers), reservation.replica_id
        served = self._attempt.placement.candidate(replica_id)
        predicted_s = served.predicted_ttft_s if served else None
        facts = {"replica": replica_id, **facts, "predicted_s": predicted_s}
        asyncio.get_running_loop().call_soon(self._learn_that_it_goes_on, report, why, facts)

    def ended(self) -> None:
        """The try is over, however it went."""
        record, computed = self.request.record, None
        if self._served_by is not None:
            prompt, cached = record.prompt_tokens, record.cached_tokens
            tokens = None if prompt is None or cached is None else max(0, prompt - cached)
            if self._goes_on:  # those are what the first engine computed
                tokens = None
            now = asyncio.get_running_loop().time()
            computed = Computed(tokens, now - self._first_token_at)
        self._scheduler.ended(self._attempt, self._served_by, computed)

    def _learn(self, outcome: Outcome, report: LoadReport | None) -> None:
        placement, scheduler = self._attempt.placement, self._scheduler
        try:
            scheduler.answered(self._attempt, outcome.replica_id, report)
            if self._tells_of(outcome):
                scheduler.observed(self._attempt, outcome.engine_s)
            self._explanation = self._reporter.answered(
                self.request, self._pool_request.prompt, placement, self._admitted, outcome
            )
        except Exception:  # an explanation must not cost the answer
            logger.exception("request %s is not explained", self.request.request_id)
        self._attempt = self._attempt.answering()

    def _learn_that_it_goes_on(
        self, report: LoadReport | None, why: WentOn, facts: Mapping[str, Any]
    ) -> None:
        try:
            self._scheduler.answered(self._attempt, facts["replica"], report)
            if self._before is not None:
                self._explanation = {**self._before.explained(), why: facts}
        except Exception:
            logger.exception("how request %s goes on is not explained", self.request.request_id)
        self._attempt = self._attempt.answering()

    def _tells_of(self, outcome: Outcome) -> bool:
        """Whether its time is what was predicted: what made a first attempt fail may slow a second,
        one that was sent on to another replica has waited for both, and a trial takes its time."""
        chosen = self._attempt.chosen
        served = chosen is not None and chosen.replica_id == outcome.replica_id
        tried = self._before is not None or self._pool_request.prompt.placement.needs_trial
        return served and not tried and outcome.prompt_tokens is not None


def _report(headers: Mapping[str, str]) -> LoadReport | None:
    try:
        return LoadReport.from_header(headers.get(LOAD_HEADER, ""))
    except ValueError:  # from a replica of another release
        return None


def _headers(
    request: PoolRequest, placement: Placement, admitted: Admitted, outcome: Outcome
) -> dict[str, str]:
    """For the client."""
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
