"""One try of a request: an engine makes its answer, or continues it, and what comes is
passed on to the client."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
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
from deployments.gateway.answer.rejoining import TAKEN_OVER, Keeping
from deployments.gateway.attempt.any_attempt import AnyAttempt, WentOn
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.errors import ApiError, broken_off
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
# No engine of the fleet answers a gateway of it so: another server has the engine's address by now.
STRANGERS = (401, 403)

Upstream = aiohttp.ClientResponse
logger = logging.getLogger("ray.serve")
# Bytes of why an engine does not continue an answer, in the log.
MOST_SAID = 500


class RelayedAnswer:
    """What all tries of one request share. `exchange`: the one under way, by its replica's address
    and ticket; None: there is none whose tokens are unknown."""

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

    def begins_anew(self) -> None:
        """The client has nothing of it yet, and what engines made counts no more."""
        self.log.clear()
        self.client.continued, self.record.resume_mode = False, ""


@dataclass(frozen=True)
class Try:
    """What is tried next. `continues`: why its engine continues an answer that another began; None:
    it begins it. `since`: when that one was lost, or this one was asked, in loop time. `move`: has
    asked this engine already."""

    attempt: AnyAttempt
    continues: WentOn | None = None
    since: float = 0.0
    move: Move | None = None


class OneTry:
    """`leg` is its trace. `error`: the client's if no other try follows; `next`: the try
    that is placed already, after `Leaves`."""

    def __init__(self, answer: RelayedAnswer, this: Try, leg: Leg) -> None:
        self.error = broken_off()
        self.next: Try | None = None
        self._answer = answer
        self._try = this
        self._leg = leg
        # a client that has a part of its answer waits for a replica no longer
        is_urgent = answer.client.started and this.move is None
        self._placing = asyncio.timeout(PLACE_AGAIN_S if is_urgent else None)
        self._instead: AnyAttempt | None = None
        self._sent_at = 0.0

    async def run(self) -> Event | None:
        """How it ended; None: the client has the whole answer. Raises ApiError where the engine
        refuses the request."""
        if self._try.continues is not None:
            self._leg.continues(self._answer.log.output_tokens or 0)
        try:
            return await self._run()
        except ReplicaFailed as failed:
            self._answer.exchange = None
            self.error = failed.error or broken_off()
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
            self._stay()

    async def _run(self) -> Event | None:
        is_placed = False
        try:
            async with self._placing, self._exchange() as (place, upstream):
                is_placed = True
                return await self._pass_on(place, upstream)
        except TimeoutError:
            if not self._placing.expired():
                raise
            if (instead := self._instead) is None:
                return NotPlaced()
            self._instead = None
            self.next = Try(instead, self._try.continues, self._try.since)
            return Leaves()
        except ApiError as error:
            if is_placed:
                raise
            if not self._answer.client.started:
                self.error = error
            return NotPlaced()
        finally:
            self._answer.keeping.leaves()

    def _exchange(self) -> AbstractAsyncContextManager[tuple[Reservation, Upstream]]:
        if self._try.move is not None:
            return self._try.move.answer()
        attempt = self._try.attempt
        return attempt.transport.exchange(self._send, attempt.route)

    async def _send(self, place: Reservation) -> Upstream:
        answer, attempt = self._answer, self._try.attempt
        body, more = attempt.body, answer.keeping.headers
        if self._try.continues is not None:
            going_on = answer.log.body_to_continue(attempt.request.engine_body)
            assert going_on is not None, "it can be continued"
            body, more = going_on, {}
        self._set_deadline(None)  # it has a place
        self._sent_at = asyncio.get_running_loop().time()
        answer.record.replica_id = place.replica_id
        answer.exchange = place.url, attempt.route.ticket
        offer = partial(self._begin_elsewhere, place.replica_id)
        with attempt.while_waiting(place.replica_id, offer):
            upstream = await answer.requests.post(
                attempt.request, attempt.path, body, place, self._leg, attempt.expected_cached, more
            )
        if self._set_deadline(None):  # it waits no more
            self._stay()
        return upstream

    def _begin_elsewhere(self, replica_id: str) -> None:
        """Without a token yet, where another engine would have one soon: nothing is lost."""
        tokens = self._answer.log.output_tokens if self._try.continues is not None else None
        if self._instead is None:
            avoid = frozenset({replica_id})
            self._instead = self._try.attempt.moved(avoid, tokens, MOST_WAIT_S)
        if self._instead is not None:
            self._set_deadline(asyncio.get_running_loop().time())

    def _set_deadline(self, until: float | None) -> bool:
        """Whether it was set: a try whose deadline has passed is over."""
        if not self._placing.expired():
            self._placing.reschedule(until)
        return not self._placing.expired()

    def _stay(self) -> None:
        if self._instead is not None:
            self._instead.ended()
            self._instead = None

    async def _pass_on(self, place: Reservation, upstream: Upstream) -> Event | None:
        """As `run`. Raises ReplicaFailed."""
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
        """Read what comes before the answer. False: the engine cannot continue another's."""
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
                said = (await upstream.content.read(MOST_SAID)).decode(errors="replace")
                logger.warning("request %s is not continued: %s", answer.request.request_id, said)
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
        answer.keeping.begins(place, attempt.route.ticket, upstream.headers)
        answer.log.begin(upstream.headers)
        first_token_at = self._first_token_at(upstream)
        answer.client.placement = attempt.answered(place, upstream.headers, first_token_at)
        # headers that come with the first token count that one only
        if not answer.client.streaming and upstream.content_type != PROGRESS_CONTENT_TYPE:
            answer.record.output_tokens = count_in(upstream.headers, OUTPUT_TOKENS_HEADER)
            answer.record.finish_reason = upstream.headers.get(FINISH_REASON_HEADER, "")
        # the client has waited for its first token long enough
        asyncio.get_running_loop().call_soon(answer.watch.first_token, answer.record)

    async def _continue(self, place: Reservation, upstream: Upstream) -> None:
        answer, attempt, why = self._answer, self._try.attempt, self._try.continues
        assert why is not None
        answer.exchange = place.url, attempt.route.ticket
        answer.log.continues()
        waited_s = asyncio.get_running_loop().time() - self._try.since
        if upstream.headers.get(RESUME_MODE_HEADER) == CONTINUED:
            answer.record.resume_mode = "continued"
            await answer.client.continues()
        else:
            answer.record.resume_mode = answer.record.resume_mode or "exact"
        mode = answer.record.resume_mode
        facts = {"tokens": answer.log.output_tokens, "waited_s": waited_s, "mode": mode}
        attempt.went_on(place, upstream.headers, why, facts)
        if why == "resumed":
            answer.record.resumed = "continued"

    def _first_token_at(self, upstream: Upstream) -> float:
        """On the loop's clock; an answer in one piece comes later."""
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
