"""Makes one try of a request: an engine begins or resumes the answer, and the client gets it.

The engine's headers wait for the first token, so an earlier failure costs a try and not the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import aiohttp

from deployments.gateway.answer.answer_to_client import AnswerToClient
from deployments.gateway.answer.engine_answer import EngineAnswer, Finish
from deployments.gateway.answer.final_count import take_counts
from deployments.gateway.answer.move import MOST_WAIT_S, Move, Mover
from deployments.gateway.answer.recovery import (
    CannotResume,
    Course,
    Event,
    Leaves,
    NoReplica,
    NotPlaced,
    TryFailed,
    resuming,
)
from deployments.gateway.attempt.engine_attempt import EngineAttempt, ResumeReason
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.api_errors import ApiError, interrupted
from deployments.gateway.record.request_watch import AnyWatch
from deployments.wire.answer_log import AnswerLog
from deployments.wire.confirmation import count_in
from deployments.wire.headers import (
    CONTINUED,
    ENGINE_TTFT_HEADER,
    FINISH_REASON_HEADER,
    NOT_RESERVED,
    OUTPUT_TOKENS_HEADER,
    PROGRESS_CONTENT_TYPE,
    RESUMABLE_HEADER,
    RESUME_MODE_HEADER,
)
from observability.traces.request_record import Leg, RequestRecord

# A client that has a part of its answer gets an error if no engine resumes it within this time.
PLACE_AGAIN_S = 5.0
# Engines never answer their own gateways with these: another server has the address by now.
STRANGERS = (401, 403)

Upstream = aiohttp.ClientResponse
logger = logging.getLogger("ray.serve")
# Bytes in the log of an engine's reason for not resuming an answer.
MAX_REASON_BYTES = 500


class RelayedAnswer:
    """The state that all tries of one request share. At most `retries` failed tries are made again.

    `course`: the tries so far, as `recovery` knows them.
    `exchange`: the replica's address and the ticket of an exchange whose final token counts only
    the replica knows; None: there is none.
    """

    def __init__(
        self,
        requests: EngineRequests,
        attempt: EngineAttempt,
        headers: Mapping[str, str],
        watch: AnyWatch,
        retries: int,
    ) -> None:
        self.request = attempt.request
        self.record = attempt.request.record
        self.requests = requests
        self.client = AnswerToClient(attempt.request, headers)
        self.log = AnswerLog()
        self.mover = Mover(self.record, self.log, requests)
        self.engine = EngineAnswer(attempt.request, self.client, self.log, self.mover)
        self.watch = watch
        self.course = Course(retries)
        self.exchange: tuple[str, str] | None = None

    def restart(self) -> None:
        """Drop the tokens so far, because the answer begins again. The client has none of them."""
        self.log.clear()
        self.client.continued = False


@dataclass(frozen=True)
class Try:
    """A try to make. `resumes`: why its engine resumes an answer that another began; None: it
    begins the answer. `since`: when the other engine was lost, or this one got the request to
    resume, in loop time. `move` has already sent that request."""

    attempt: EngineAttempt
    resumes: ResumeReason | None = None
    since: float = 0.0
    move: Move | None = None


class Sending:
    """Sends the request of the try `this` to an engine, and waits for the engine's headers.

    If the engine leaves before they arrive, and another one is predicted to answer soon, the
    request goes there instead (`replacement`). `sent_at`: when it was sent, in loop time.
    """

    def __init__(self, answer: RelayedAnswer, this: Try, leg: Leg) -> None:
        self.sent_at = 0.0
        self._answer = answer
        self._try = this
        self._leg = leg
        # only a client that has a part of its answer has this limit
        self._limit = asyncio.timeout(PLACE_AGAIN_S if answer.client.started else None)
        self._replacement: EngineAttempt | None = None

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[tuple[Reservation, Upstream]]:
        """Yield the place and the engine's answer. Raises TimeoutError, ApiError, ReplicaFailed,
        NoReplicaUp: when there is none."""
        await self._try.attempt.cached.compute(self._answer.requests.post)
        async with self._limit, self._try.attempt.exchange(self._send) as placed:
            yield placed

    @property
    def is_over(self) -> bool:
        """Whether the request has left its engine, or had no place in time."""
        return self._limit.expired()

    def replacement(self) -> Try | None:
        """Return the try on the engine to which the request goes instead; None: there is none."""
        attempt, self._replacement = self._replacement, None
        return Try(attempt, self._try.resumes, self._try.since) if attempt else None

    def close(self) -> None:
        """Release a replacement that is not used."""
        if self._replacement is not None:
            self._replacement.ended()
            self._replacement = None

    async def _send(self, place: Reservation) -> Upstream:
        answer, attempt = self._answer, self._try.attempt
        body = attempt.request.engine_body
        if self._try.resumes is not None:
            body = answer.log.body_to_resume(body)
        self._set_limit(None)  # it has a place
        self.sent_at = asyncio.get_running_loop().time()
        answer.record.placed(place.replica_id)
        answer.exchange = place.url, attempt.ticket
        with attempt.while_waiting(place.replica_id, partial(self._leave, place.replica_id)):
            with _noted(answer.record):
                upstream = await answer.requests.post(attempt, body, place, self._leg)
            if upstream.status not in (NOT_RESERVED, *STRANGERS):
                answer.record.sent()
        if self._set_limit(None):  # the engine has answered in time
            self.close()
        return upstream

    def _leave(self, replica_id: str) -> None:
        """Leave an engine that has produced no token yet, if another one would soon."""
        tokens = self._answer.log.output_tokens if self._try.resumes is not None else None
        if self._replacement is None:
            avoid = frozenset({replica_id})
            self._replacement = self._try.attempt.moved(avoid, tokens, MOST_WAIT_S)
        if self._replacement is not None:
            self._set_limit(asyncio.get_running_loop().time())

    def _set_limit(self, until: float | None) -> bool:
        """Return whether the limit was set. It is not once it has passed: the try is over."""
        if not self._limit.expired():
            self._limit.reschedule(until)
        return not self._limit.expired()


class OneTry:
    """Makes the try `this`, with the trace `leg`. Afterwards, `error` is for the client if no other
    try follows. `next` is the placed try after `Leaves`."""

    def __init__(self, answer: RelayedAnswer, this: Try, leg: Leg) -> None:
        self._error: ApiError | None = None
        self.next: Try | None = None
        self._answer = answer
        self._try = this
        self._leg = leg
        self._sending = Sending(answer, this, leg)

    @property
    def error(self) -> ApiError:
        return self._error or interrupted()

    async def run(self) -> Event | None:
        """Return how the try ended; None: the client has the whole answer. Raises ApiError: when
        the engine rejects the request."""
        if self._try.resumes is not None:
            self._leg.resumes(self._answer.log.output_tokens or 0)
        try:
            return await self._run()
        except ReplicaFailed as failed:
            if failed.error is None:  # a replica that answered knows the counts
                self._answer.exchange = None
            self._error = failed.error
            return _event(failed, self._try.attempt.is_leaving(failed.replica_id))
        except NoReplicaUp:
            return NoReplica()
        finally:
            self._leg.output_tokens = self._answer.engine.finish.output_tokens
            self._try.attempt.ended()
            self._sending.close()

    async def _run(self) -> Event | None:
        move, sending, is_placed = self._try.move, self._sending, False
        try:
            async with move.answer() if move else sending.exchange() as (place, upstream):
                is_placed = True
                return await self._pass_on(place, upstream)
        except TimeoutError:
            if not sending.is_over:
                raise
            self.next = sending.replacement()
            return Leaves() if self.next else NotPlaced()
        except ApiError as error:
            if is_placed:
                raise
            if not self._answer.client.started:
                self._error = error
            return NotPlaced()

    async def _pass_on(self, place: Reservation, upstream: Upstream) -> Event | None:
        """As `run`. Also raises ReplicaFailed."""
        mover = self._answer.mover
        try:
            if not await self._begins(place, upstream):
                return CannotResume()
            with mover.offering(self._try.attempt, place, upstream):
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
        cannot resume the answer."""
        answer, resumes = self._answer, self._try.resumes is not None
        if upstream.status in STRANGERS:
            raise ReplicaFailed(place.replica_id, was_lost=False)
        if upstream.status >= 500 or (upstream.status >= 400 and not resumes):
            take_counts(answer.record, answer.log, upstream.headers)
            raise answer.engine.failure(place, EngineError(upstream.status, await upstream.read()))
        content_type = upstream.headers.get("content-type", "")
        streaming = content_type.startswith("text/event-stream")
        if resumes:
            can_resume = upstream.status < 400 and RESUMABLE_HEADER in upstream.headers
            if not can_resume or (answer.client.started and not streaming):
                answer.exchange = None
                tokens = answer.log.output_tokens
                answer.engine.finish = replace(answer.engine.finish, output_tokens=tokens)
                read = await upstream.content.read(MAX_REASON_BYTES)
                reason, request_id = read.decode(errors="replace"), answer.request.request_id
                logger.warning("failed to resume request %s: %s", request_id, reason)
                return False
            await self._resume(place, upstream)
            return True
        if streaming:
            await answer.engine.begins(place, upstream)
        answer.client.streaming = streaming
        self._begin(place, upstream)
        return True

    def _begin(self, place: Reservation, upstream: Upstream) -> None:
        answer, attempt = self._answer, self._try.attempt
        answer.log.begin(upstream.headers)
        first_token_at = self._first_token_at(upstream)
        answer.client.placement = attempt.answered(place, upstream.headers, first_token_at)
        # headers that arrive with the first token count only that token
        if not answer.client.streaming and upstream.content_type != PROGRESS_CONTENT_TYPE:
            answer.engine.finish = Finish(
                count_in(upstream.headers, OUTPUT_TOKENS_HEADER),
                upstream.headers.get(FINISH_REASON_HEADER, ""),
            )
        # later, because the client waits for its first token
        asyncio.get_running_loop().call_soon(answer.watch.first_token, answer.record)

    async def _resume(self, place: Reservation, upstream: Upstream) -> None:
        answer, attempt, reason = self._answer, self._try.attempt, self._try.resumes
        assert reason is not None
        answer.exchange = place.url, attempt.ticket
        answer.log.resumes()
        waited_s = asyncio.get_running_loop().time() - self._try.since
        is_exact = upstream.headers.get(RESUME_MODE_HEADER) != CONTINUED
        answer.course = resuming(answer.course, is_exact, was_lost=reason == "resumed")
        if not is_exact:
            await answer.client.resumes()
        mode = answer.course.resume_mode
        facts = {"tokens": answer.log.output_tokens, "waited_s": waited_s, "mode": mode}
        attempt.resumed(place, upstream.headers, reason, facts)

    def _first_token_at(self, upstream: Upstream) -> float:
        """Return the first token's time on the loop's clock. An answer in one piece arrives later,
        so the engine reports it."""
        at = asyncio.get_running_loop().time()
        if not self._answer.client.streaming:
            with contextlib.suppress(KeyError, ValueError):
                at = self._sending.sent_at + float(upstream.headers[ENGINE_TTFT_HEADER])
        return at

    async def _pass_on_answer(self, place: Reservation, upstream: Upstream) -> Move | None:
        answer, client = self._answer, self._answer.client
        if upstream.content_type == PROGRESS_CONTENT_TYPE:
            return await answer.engine.whole(place, upstream)
        if not client.started:
            await client.start(place.replica_id, upstream.status, upstream.headers)
        if client.streaming:
            if (move := await answer.engine.stream(place, upstream)) is not None:
                return move
        else:
            async for piece in upstream.content.iter_any():
                await client.piece(piece)
        await client.end()
        return None


def _event(failed: ReplicaFailed, is_leaving: bool) -> TryFailed:
    return TryFailed(
        failed.replica_id,
        asyncio.get_running_loop().time(),
        was_lost=failed.was_lost,
        was_reached=failed.was_reached,
        is_leaving=is_leaving,
        ran_out_of_memory=failed.ran_out_of_memory,
    )


@contextlib.contextmanager
def _noted(record: RequestRecord) -> Iterator[None]:
    """Record a request as sent if the block fails after an engine may have received it."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except BaseException:
        record.sent()
        raise
