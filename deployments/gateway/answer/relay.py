"""One request on its way to an engine and back, as an ASGI response.

Nothing is lost on the way: the engine's events reach the client as they come, a client that
leaves aborts the generation, a deadline ends it, and a replica that fails costs the client a
retry's time, not an error: before it has said anything always, and later where its answer is one
that another can go on with (`resumable`). From a replica that is taken away, such an answer is
moved (`move`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial

import aiohttp
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.gateway.answer.engine_answer import EngineAnswer
from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.move import MOST_WAIT_S, Move, Moved, Mover
from deployments.gateway.answer.rejoining import (
    TAKEN_OVER,
    Keeping,
    Reader,
    RejoinedAttempt,
    TakenOver,
    gateway_stopped,
)
from deployments.gateway.answer.resumable import AnswerSoFar
from deployments.gateway.answer.told_answer import ToldAnswer
from deployments.gateway.attempt.engine_attempt import EngineAttempt, WentOn
from deployments.gateway.attempt.engine_errors import EngineError
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.errors import ApiError, broken_off
from deployments.gateway.intake.request import cancelled, client_gone
from deployments.gateway.record.request_watch import RequestWatch
from deployments.wire.confirmation import count_in
from deployments.wire.headers import (
    ENGINE_TTFT_HEADER,
    EXPECTED_CACHED_HEADER,
    HOLD_HEADER,
    OUTPUT_TOKENS_HEADER,
    PROGRESS_CONTENT_TYPE,
    RESUMABLE_HEADER,
    TENANT_HEADER,
)
from deployments.wire.tenant import digest
from observability.request_record import Leg

logger = logging.getLogger("ray.serve")

AnyAttempt = EngineAttempt | RejoinedAttempt

# A client that has a part of its answer is told within this time that nobody can go on with it.
PLACE_AGAIN_S = 5.0
# No engine of the fleet answers a gateway of it so: another server has the engine's address by now.
STRANGERS = (401, 403)
# Ray Serve names a replica that is gone until it has noticed: asked again this often, for so long.
GONE_AGAIN_S, NOTICED_S = 0.1, 5.0


class _CannotGoOn(Exception):
    """The engine that was asked to go on with an answer cannot."""


class _Elsewhere(Exception):
    """The request waits where an engine is taken away, and begins at `attempt` instead."""

    def __init__(self, attempt: EngineAttempt) -> None:
        super().__init__()
        self.attempt = attempt


class Relay(Response):
    """Carries a request that was let in to where `attempt` says, and its answer back.

    `headers` are for the client. A try that fails has another, in mid-answer or before, `retries`
    times: a request that kills the engine it runs on must not take the whole pool along. `fatal` is
    told when every try was lost with its engine, and says what the client is told. `keeping`: the
    stream is kept, should this gateway be lost. `counts` has the tokens of an answer that is left.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        attempt: AnyAttempt,
        watch: RequestWatch,
        headers: Mapping[str, str],
        retries: int,
        fatal: Callable[[], ApiError],
        keeping: Keeping | None,
        counts: FinalCounts,
    ) -> None:
        super().__init__()
        self._counts = counts
        self._exchange: tuple[str, str] | None = None  # under way: its address and ticket
        self._attempts = 1 + retries
        self._watch = watch
        self._session = session
        self._attempt = attempt
        self._request = attempt.request
        self._client = ToldAnswer(attempt.request, headers)
        self._sent = 0.0
        self._fatal = fatal
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeping = keeping
        self._reader: Reader | None = None
        self._so_far = AnswerSoFar(attempt.had_events)
        # what the engine is sent that is to go on with it
        self._resume: bytes | None = None
        self._went_on: WentOn = "resumed"
        self._instead: EngineAttempt | None = None
        self._placing = asyncio.timeout(None)
        self._lost_at = 0.0
        self._mover = Mover(self._request.record, self._so_far, self._ask_to_go_on)
        self._engine_answer = EngineAnswer(self._request, self._client, self._so_far, self._mover)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._client.goes_to(scope, send)
        work = asyncio.ensure_future(self._answer())
        gone = asyncio.ensure_future(client_gone(receive))
        timeout = max(0.0, self._request.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(
                {work, gone, self._stopped},
                timeout=timeout,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if work.done():
                work.result()
            elif not gone.done():
                error = self._request.deadline_passed()
                if self._stopped.done():
                    if is_kept := self._reader is not None:
                        self._reader = self._exchange = None  # for another gateway
                    error = gateway_stopped(is_kept)
                await cancelled(work)
                raise error
        except ApiError as error:
            self._request.record.failed(error.status, error.code)
            await self._client.fail(error, scope, receive, self._so_far.next_number)
        except Exception:
            self._request.record.failed(500, "gateway_error")
            raise
        finally:
            await cancelled(work)
            await cancelled(gone)
            await self._mover.close()
            record = self._request.record
            if self._exchange and (work.cancelled() or self._client.streaming):
                record.left_at = asyncio.get_running_loop().time()
                await self._counts.take(*self._exchange, record, self._so_far)
            # who reads on is not charged: a stream that was taken over counts in full
            if record.output_tokens is None and record.error != TAKEN_OVER:
                record.output_tokens = self._so_far.counted_tokens
            self._watch.ended(record)

    def stop(self) -> None:
        """This gateway cannot wait for its answer any more: its client is told."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _answer(self) -> None:
        record = self._request.record
        attempt: AnyAttempt = self._attempt
        try:
            record.trace.placed(attempt.facts)
        except Exception:  # a trace must not cost a request, nor its place
            logger.exception("request %s is not traced", self._request.request_id)
        failed: frozenset[str] = frozenset()
        lost: frozenset[str] = frozenset()
        tries = 0
        is_decided_anew = False
        move: Move | None = None
        clock = asyncio.get_running_loop().time
        noticed_at = math.inf
        while True:
            following: EngineAttempt | None = None
            if is_decided_anew:
                attempt, is_decided_anew = await attempt.elsewhere(), False
            with contextlib.nullcontext(move.leg) if move else record.trace.attempt(record) as leg:
                if self._resume is not None:
                    leg.resumes(self._so_far.output_tokens or 0)
                try:
                    await self._try(attempt, leg, move)
                    record.outcome, self._exchange = "ok", None
                    return
                except ReplicaFailed as broken:
                    self._exchange = None
                    is_known = broken.replica_id in failed
                    noticed_at = min(noticed_at, clock() + NOTICED_S)
                    if is_known and not broken.was_reached and clock() < noticed_at:
                        await asyncio.sleep(GONE_AGAIN_S)
                    # its end was wanted: once, that is no fault of the request
                    elif is_known or not attempt.is_leaving(broken.replica_id):
                        tries += 1
                        lost |= {broken.replica_id} if broken.was_lost else set()
                    failed |= {broken.replica_id}
                    failure, move = broken.error or broken_off(), None
                except Moved as moved:
                    move, self._went_on = moved.move, "moved"
                    following = move.attempt
                    self._resume = self._so_far.going_on(attempt.request.engine_body)
                    self._lost_at = move.asked_at or 0.0
                except _Elsewhere as there:
                    following, move = there.attempt, None
                except _CannotGoOn:
                    record.resumed, failure, move = "refused", broken_off(), None
                    record.output_tokens, self._exchange = self._so_far.output_tokens, None
                    self._so_far.forget()
                except NoReplicaUp:  # once at most
                    self._resume = None  # it may go to another model
                    self._so_far.forget()
                    is_decided_anew, move = True, None
                finally:
                    attempt.ended()
                    self._stay()
                if is_decided_anew:
                    continue
                if following is not None:
                    attempt = following
                    continue
                leg.failed(failure.code)
                await self._mover.close()
            logger.warning("request %s failed on %s", self._request.request_id, [*failed])
            if len(lost) == self._attempts:
                failure = self._fatal()
            attempt = self._again(attempt, failed, failure, tries)

    def _again(
        self, attempt: AnyAttempt, failed: frozenset[str], failure: ApiError, tries: int
    ) -> EngineAttempt:
        """The next try, which goes on with the answer where that can be. Raises `failure` where
        there is to be none."""
        record, so_far = self._request.record, self._so_far
        self._lost_at, self._went_on = asyncio.get_running_loop().time(), "resumed"
        if record.resumed == "continued":
            record.resumed = "failed"
        is_last = tries == self._attempts
        self._resume = None if is_last else so_far.going_on(attempt.request.engine_body)
        if self._resume is not None:
            record.resumed = "failed"  # until another has gone on
            return attempt.again(failed, so_far.output_tokens)
        if self._client.started or is_last:
            if self._client.started and not record.resumed:
                record.resumed = "impossible"
            raise failure
        so_far.forget()
        return attempt.again(failed)

    async def _try(self, attempt: AnyAttempt, leg: Leg, move: Move | None) -> None:
        """`move` has asked the engine already.

        Raises ReplicaFailed, _CannotGoOn, Moved, NoReplicaUp and ApiError.
        """
        if move is not None:
            exchange = move.answer()
        else:
            exchange = attempt.transport.exchange(partial(self._send, attempt, leg), attempt.route)
        is_placed = False
        try:
            must_hurry = self._client.started and move is None
            self._placing = asyncio.timeout(PLACE_AGAIN_S if must_hurry else None)
            async with self._placing, exchange as (place, upstream):
                is_placed = True
                try:
                    await self._pass_on(attempt, place, upstream)
                except (aiohttp.ClientError, ReplicaFailed) as error:
                    await self._mover.look()
                    if isinstance(error, ReplicaFailed):
                        raise
                    raise ReplicaFailed(place.replica_id) from error
        except TimeoutError:
            if not self._placing.expired():
                raise
            if (instead := self._instead) is not None:
                self._instead = None
                raise _Elsewhere(instead) from None
            raise broken_off() from None
        except (ApiError, NoReplicaUp):
            if is_placed or not self._client.started:
                raise
            raise broken_off() from None  # its client cannot wait for a replica any more
        finally:
            if self._reader is not None and self._keeping is not None:
                self._keeping.leaves(self._reader)
                self._reader = None

    async def _ask_to_go_on(
        self, attempt: EngineAttempt, leg: Leg, place: Reservation
    ) -> aiohttp.ClientResponse:
        body = self._so_far.going_on(attempt.request.engine_body)
        assert body is not None, "it can go on"
        leg.resumes(self._so_far.output_tokens or 0)
        return await self._post(attempt, leg, place, body)

    async def _send(
        self, attempt: AnyAttempt, leg: Leg, place: Reservation
    ) -> aiohttp.ClientResponse:
        body, keeping = attempt.body, self._keeping
        if self._resume is not None:
            body, keeping = self._resume, None
        if not self._placing.expired():
            self._placing.reschedule(None)  # it has a place
        self._sent = asyncio.get_running_loop().time()
        self._request.record.replica_id = place.replica_id
        self._exchange = place.url, attempt.route.ticket
        if isinstance(attempt, RejoinedAttempt) or not attempt.streams:
            return await self._post(attempt, leg, place, body, keeping)
        waits = partial(self._begin_elsewhere, attempt, place.replica_id)
        attempt.moves.begun(place.replica_id, waits)
        try:
            answer = await self._post(attempt, leg, place, body, keeping)
        finally:
            attempt.moves.ended(place.replica_id, waits)
        if not self._placing.expired():
            self._placing.reschedule(None)  # it waits no more
            self._stay()
        return answer

    def _begin_elsewhere(self, attempt: EngineAttempt, replica_id: str) -> None:
        """Without a token yet, where another engine would have one soon: nothing is lost."""
        tokens = None if self._resume is None else self._so_far.output_tokens
        if self._instead is None:
            self._instead = attempt.moved(frozenset({replica_id}), tokens, MOST_WAIT_S)
        if self._instead is not None:
            self._placing.reschedule(asyncio.get_running_loop().time())

    def _stay(self) -> None:
        if self._instead is not None:
            self._instead.ended()
            self._instead = None

    async def _post(
        self,
        attempt: AnyAttempt,
        leg: Leg,
        place: Reservation,
        body: bytes,
        keeping: Keeping | None = None,
    ) -> aiohttp.ClientResponse:
        request, leg.replica_id = attempt.request, place.replica_id
        headers = {
            **leg.headers,
            **place.headers,
            "content-type": "application/json",
            "accept-encoding": "identity",
            "x-request-id": request.request_id,
            EXPECTED_CACHED_HEADER: str(attempt.expected_cached),
            RESUMABLE_HEADER: "1",
            TENANT_HEADER: digest(request.tenant),
            **(keeping.headers if keeping else {}),
        }
        return await self._session.post(place.url + attempt.path, data=body, headers=headers)

    async def _pass_on(
        self,
        attempt: AnyAttempt,
        place: Reservation,
        upstream: aiohttp.ClientResponse,
    ) -> None:
        """Raises ReplicaFailed when the engine says that it failed, and as `_try`."""
        if upstream.status in STRANGERS:
            raise ReplicaFailed(place.replica_id, was_lost=False)
        if upstream.status >= 500 or (upstream.status >= 400 and self._resume is None):
            error = EngineError(upstream.status, await upstream.read())
            raise self._engine_answer.failure(place, error)
        content_type = upstream.headers.get("content-type", "")
        streaming = content_type.startswith("text/event-stream")
        if self._resume is not None:
            resumes = RESUMABLE_HEADER in upstream.headers
            if upstream.status >= 400 or not resumes or (self._client.started and not streaming):
                raise _CannotGoOn
            assert isinstance(attempt, EngineAttempt)
            self._goes_on(attempt, place, upstream)
        else:
            if streaming:
                await self._engine_answer.begins(place, upstream)
            self._client.streaming = streaming
            self._begins(attempt, place, upstream)
        if isinstance(attempt, RejoinedAttempt):  # it stays where it is kept
            await self._pass_on_answer(place, upstream)
            return
        offer = partial(self._mover.offer, attempt, place, upstream)
        if self._so_far.can_go_on:
            attempt.moves.begun(place.replica_id, offer)
        try:
            await self._pass_on_answer(place, upstream)
        finally:
            attempt.moves.ended(place.replica_id, offer)

    async def _pass_on_answer(self, place: Reservation, upstream: aiohttp.ClientResponse) -> None:
        answer = self._engine_answer
        if upstream.content_type == PROGRESS_CONTENT_TYPE:
            await answer.whole(place, upstream)
            return
        if not self._client.started:
            resume_id = self._reader.id if self._reader is not None else None
            await self._client.start(place.replica_id, upstream.status, upstream.headers, resume_id)
        if self._client.streaming:
            try:
                await answer.stream(place, upstream)
            except TakenOver:
                self._reader = self._exchange = None
                raise
            self._request.record.output_tokens = self._so_far.counted_tokens
        else:
            async for piece in upstream.content.iter_any():
                await self._client.piece(piece)
        await self._client.end()
        self._reader = None

    def _begins(
        self, attempt: AnyAttempt, place: Reservation, upstream: aiohttp.ClientResponse
    ) -> None:
        record = self._request.record
        if self._keeping is not None and HOLD_HEADER in upstream.headers:
            self._reader = self._keeping.reader(place, attempt.route.ticket)
        self._so_far.begins(upstream.headers)
        first_token_at = self._first_token_at(upstream)
        self._client.placement = attempt.answered(place, upstream.headers, first_token_at)
        # headers that come with the first token count that one only
        if not self._client.streaming and upstream.content_type != PROGRESS_CONTENT_TYPE:
            record.output_tokens = count_in(upstream.headers, OUTPUT_TOKENS_HEADER)
        # the client has waited for its first token long enough
        asyncio.get_running_loop().call_soon(self._watch.first_token, record)

    def _goes_on(
        self, attempt: EngineAttempt, place: Reservation, upstream: aiohttp.ClientResponse
    ) -> None:
        self._exchange = place.url, attempt.route.ticket
        waited_s = asyncio.get_running_loop().time() - self._lost_at
        told = {"tokens": self._so_far.output_tokens, "waited_s": waited_s}
        attempt.went_on(place, upstream.headers, self._went_on, told)
        if self._went_on == "resumed":
            self._request.record.resumed = "continued"

    def _first_token_at(self, upstream: aiohttp.ClientResponse) -> float:
        """On the loop's clock; an answer in one piece comes later."""
        until = asyncio.get_running_loop().time()
        if not self._client.streaming:
            with contextlib.suppress(KeyError, ValueError):
                until = self._sent + float(upstream.headers[ENGINE_TTFT_HEADER])
        return until
