"""Makes one try of a request: an engine begins or continues the answer, and the client gets it.

The engine's headers wait for the first token, so an earlier failure costs a try and not the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import aiohttp

from deployments.gateway.answer.answer_to_client import AnswerToClient
from deployments.gateway.answer.engine_answer import EngineAnswer
from deployments.gateway.answer.move import MOST_WAIT_S, Move, Mover
from deployments.gateway.answer.recovery import (
    CannotContinue,
    Event,
    Leaves,
    NoReplica,
    NotPlaced,
    TryFailed,
)
from deployments.gateway.answer.resuming import TAKEN_OVER, Keeping
from deployments.gateway.attempt.any_attempt import AnyAttempt, ContinueReason
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.errors import ApiError, interrupted
from deployments.gateway.record.request_watch import AnyWatch
from deployments.wire.answer_log import AnswerLog
from deployments.wire.confirmation import count_in
from deployments.wire.headers import (
    CONTINUED,
    ENGINE_TTFT_HEADER,
    FINISH_REASON_HEADER,
    OUTPUT_TOKENS_HEADER,
    PROGRESS_CONTENT_TYPE,
    RESUMABLE_HEADER,
    RESUME_MODE_HEADER,
)
from observability.request_record import Leg

# A client that has a part of its answer gets an error if no engine continues it within this time.
PLACE_AGAIN_S = 5.0
# Engines never answer their own gateways with these: another server has the address by now.
STRANGERS = (401, 403)

Upstream = aiohttp.ClientResponse
logger = logging.getLogger("ray.serve")
# Bytes in the log of an engine's reason for not continuing an answer.
MAX_REASON_BYTES = 500


class RelayedAnswer:
    """The state that all tries of one request share.

    `exchange`: the replica's address and the ticket of an exchange whose final token counts only
    the replica knows; None: there is none.
    """

    def __init__(
        self,
        requests: EngineRequests,
        attempt: AnyAttempt,
        headers: Mapping[str, str],
        keeping: Keeping,
        watch: AnyWatch,
    ) -> None:
        self.request = attempt.request
        self.record = attempt.request.record
        self.requests = requests
        self.client = AnswerToClient(attempt.request, headers)
        self.log = AnswerLog(attempt.had_events)
        self.mover = Mover(self.record, self.log, requests)
        self.engine = EngineAnswer(attempt.request, self.client, self.log, self.mover)
        self.keeping = keeping
        self.watch = watch
        self.exchange: tuple[str, str] | None = None

    def restart(self) -> None:
        """Drop the tokens so far, because the answer begins again. The client has none of them."""
        self.log.clear()
        self.client.continued, self.record.resume_mode = False, ""


@dataclass(frozen=True)
class Try:
    """A try to make. `continues`: why its engine continues an answer that another began; None: it
    begins the answer. `since`: when the other engine was lost, or this one got the request to
    continue, in loop time. `move` has already sent that request."""

    attempt: AnyAttempt
    continues: ContinueReason | None = None
    since: float = 0.0
    move: Move | None = None


class OneTry:
    """Makes the try `this`, with the trace `leg`. Afterwards, `error` is for the client if no other
    try follows. `next` is the placed try after `Leaves`."""

    def __init__(self, answer: RelayedAnswer, this: Try, leg: Leg) -> None:
        self._error: ApiError | None = None
        self.next: Try | None = None
        self._answer = answer
        self._try = this
        self._leg = leg
        # only a client that has a part of its answer has this limit
        is_urgent = answer.client.started and this.move is None
        self._placing = asyncio.timeout(PLACE_AGAIN_S if is_urgent else None)
        self._replacement: AnyAttempt | None = None
        self._sent_at = 0.0

    @property
    def error(self) -> ApiError:
        return self._error or interrupted()

    async def run(self) -> Event | None:
        """Return how the try ended; None: the client has the whole answer. Raises ApiError: when
        the engine rejects the request."""
        if self._try.continues is not None:
            self._leg.continues(self._answer.log.output_tokens or 0)
        try:
            return await self._run()
        except ReplicaFailed as failed:
            self._answer.exchange = None
            self._error = failed.error
            return TryFailed(
                failed.replica_id,
                asyncio.get_running_loop().time(),
                failed.was_lost,
                failed.was_reached,
                self._try.attempt.is_leaving(failed.replica_id),
            )
        except NoReplicaUp:
            return NoReplica()
        finally:
            self._try.attempt.ended()
            self._drop_replacement()

    async def _run(self) -> Event | None:
        move, is_placed = self._try.move, False
        exchange = self._try.attempt.exchange(self._send) if move is None else move.answer()
        try:
            async with self._placing, exchange as (place, upstream):
                is_placed = True
                return await self._pass_on(place, upstream)
        except TimeoutError:
            if not self._placing.expired():
                raise
            if (replacement := self._replacement) is None:
                return NotPlaced()
            self._replacement = None
            self.next = Try(replacement, self._try.continues, self._try.since)
            return Leaves()
        except ApiError as error:
            if is_placed:
                raise
            if not self._answer.client.started:
                self._error = error
            return NotPlaced()
        finally:
            self._answer.keeping.leaves()

    async def _send(self, place: Reservation) -> Upstream:
        answer, attempt = self._answer, self._try.attempt
        body, more = attempt.body, answer.keeping.headers
        if self._try.continues is not None:
            continued_body = answer.log.body_to_continue(attempt.request.engine_body)
            assert continued_body is not None, "can_continue was checked"
            body, more = continued_body, {}
        self._set_deadline(None)  # it has a place
        self._sent_at = asyncio.get_running_loop().time()
        answer.record.replica_id = place.replica_id
        answer.exchange = place.url, attempt.ticket
        offer = partial(self._begin_elsewhere, place.replica_id)
        with attempt.while_waiting(place.replica_id, offer):
            upstream = await answer.requests.post(attempt, body, place, self._leg, more)
        if self._set_deadline(None):  # the engine has answered in time
            self._drop_replacement()
        return upstream

    def _begin_elsewhere(self, replica_id: str) -> None:
        """Leave an engine that has produced no token yet, if another one would soon."""
        tokens = self._answer.log.output_tokens if self._try.continues is not None else None
        if self._replacement is None:
            avoid = frozenset({replica_id})
            self._replacement = self._try.attempt.moved(avoid, tokens, MOST_WAIT_S)
        if self._replacement is not None:
            self._set_deadline(asyncio.get_running_loop().time())

    def _set_deadline(self, until: float | None) -> bool:
        """Return whether the deadline was set. It is not once it has passed: the try is over."""
        if not self._placing.expired():
            self._placing.reschedule(until)
        return not self._placing.expired()

    def _drop_replacement(self) -> None:
        if self._replacement is not None:
            self._replacement.ended()
            self._replacement = None

    async def _pass_on(self, place: Reservation, upstream: Upstream) -> Event | None:
        """As `run`. Also raises ReplicaFailed."""
        mover = self._answer.mover
        try:
            if not await self._begins(place, upstream):
                return CannotContinue()
            offer = partial(mover.offer, self._try.attempt, place, upstream)
            can_move = self._answer.log.can_continue
            with (
                self._try.attempt.while_answered(place.replica_id, offer)
                if can_move
                else contextlib.nullcontext()
            ):
                move = await self._pass_on_answer(place, upstream)
        except (aiohttp.ClientError, ReplicaFailed) as error:
            if (move := await mover.taken()) is None:
                if isinstance(error, ReplicaFailed):
                    raise
                raise ReplicaFailed(place.replica_id) from error
        if move is None:
            return None
        self.next = Try(move.attempt, "moved", move.asked_at or 0.0, move)
        return Leaves()

    async def _begins(self, place: Reservation, upstream: Upstream) -> bool:
        """Read the status, the headers and a stream's first event. Return False if the engine
        cannot continue the answer."""
        answer, continues = self._answer, self._try.continues is not None
        if upstream.status in STRANGERS:
            raise ReplicaFailed(place.replica_id, was_lost=False)
        if upstream.status >= 500 or (upstream.status >= 400 and not continues):
            raise answer.engine.failure(place, EngineError(upstream.status, await upstream.read()))
        content_type = upstream.headers.get("content-type", "")
        streaming = content_type.startswith("text/event-stream")
        if continues:
            resumes = upstream.status < 400 and RESUMABLE_HEADER in upstream.headers
            if not resumes or (answer.client.started and not streaming):
                answer.record.resumed, answer.exchange = "refused", None
                answer.record.output_tokens = answer.log.output_tokens
                read = await upstream.content.read(MAX_REASON_BYTES)
                reason, request_id = read.decode(errors="replace"), answer.request.request_id
                logger.warning("request %s is not continued: %s", request_id, reason)
                return False
            await self._continue(place, upstream)
            return True
        if streaming:
            await answer.engine.begins(place, upstream)
        answer.client.streaming = streaming
        self._begin(place, upstream)
        return True

    def _begin(self, place: Reservation, upstream: Upstream) -> None:
        answer, attempt = self._answer, self._try.attempt
        answer.keeping.begins(place, attempt.ticket, upstream.headers)
        answer.log.begin(upstream.headers)
        first_token_at = self._first_token_at(upstream)
        answer.client.placement = attempt.answered(place, upstream.headers, first_token_at)
        # headers that arrive with the first token count only that token
        if not answer.client.streaming and upstream.content_type != PROGRESS_CONTENT_TYPE:
            answer.record.output_tokens = count_in(upstream.headers, OUTPUT_TOKENS_HEADER)
            answer.record.finish_reason = upstream.headers.get(FINISH_REASON_HEADER, "")
        # later, because the client waits for its first token
        asyncio.get_running_loop().call_soon(answer.watch.first_token, answer.record)

    async def _continue(self, place: Reservation, upstream: Upstream) -> None:
        answer, attempt, reason = self._answer, self._try.attempt, self._try.continues
        assert reason is not None
        answer.exchange = place.url, attempt.ticket
        answer.log.continues()
        waited_s = asyncio.get_running_loop().time() - self._try.since
        if upstream.headers.get(RESUME_MODE_HEADER) == CONTINUED:
            answer.record.resume_mode = "continued"
            await answer.client.continues()
        else:
            answer.record.resume_mode = answer.record.resume_mode or "exact"
        mode = answer.record.resume_mode
        facts = {"tokens": answer.log.output_tokens, "waited_s": waited_s, "mode": mode}
        attempt.continued(place, upstream.headers, reason, facts)
        if reason == "resumed":
            answer.record.resumed = "continued"

    def _first_token_at(self, upstream: Upstream) -> float:
        """Return the first token's time on the loop's clock. An answer in one piece arrives later,
        so the engine reports it."""
        at = asyncio.get_running_loop().time()
        if not self._answer.client.streaming:
            with contextlib.suppress(KeyError, ValueError):
                at = self._sent_at + float(upstream.headers[ENGINE_TTFT_HEADER])
        return at

    async def _pass_on_answer(self, place: Reservation, upstream: Upstream) -> Move | None:
        answer, client = self._answer, self._answer.client
        if upstream.content_type == PROGRESS_CONTENT_TYPE:
            return await answer.engine.whole(place, upstream)
        if not client.started:
            stream_id = answer.keeping.stream_id
            await client.start(place.replica_id, upstream.status, upstream.headers, stream_id)
        if client.streaming:
            try:
                move = await answer.engine.stream(place, upstream)
            except ApiError as error:
                if error.code == TAKEN_OVER:
                    answer.exchange = None
                    answer.keeping.ends()
                raise
            if move is not None:
                return move
            answer.record.output_tokens = answer.log.counted_tokens
            answer.record.finish_reason = answer.log.finish_reason
        else:
            async for piece in upstream.content.iter_any():
                await client.piece(piece)
        await client.end()
        answer.keeping.ends()
        return None
