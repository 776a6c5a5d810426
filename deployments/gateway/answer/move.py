"""Moves an answer from an engine that is leaving to another one.

The first engine keeps the answer until the other has begun to resume it. If the other is full,
cannot resume it or is lost, the answer stays where it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial

import aiohttp

from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.answer_log import AnswerLog
from deployments.wire.headers import NOT_RESERVED, RESUMABLE_HEADER
from observability.traces.request_record import Leg, Moved, RequestRecord

logger = logging.getLogger("ray.serve")

# The client's stream waits for the other engine. One with a later predicted token counts as full.
MOST_WAIT_S = 5.0
# Limit for an engine that takes longer than predicted.
GIVE_UP_S = 15.0
# Delay between two offers of one answer.
AGAIN_S = 1.0


class Mover:
    """Offers one answer to other engines, one at a time.

    While `move` is set, `taken` must be called before the client gets another token. `moved`: the
    result so far; "": its engines have not left.
    """

    def __init__(self, record: RequestRecord, log: AnswerLog, requests: EngineRequests) -> None:
        self.move: Move | None = None
        self.moved: Moved = ""
        self._record = record
        self._log = log
        self._requests = requests
        self._offer_again_at = 0.0
        self._refused_by: frozenset[str] = frozenset()
        self._is_last = False

    def offering(
        self, attempt: EngineAttempt, place: Reservation, answer: aiohttp.ClientResponse
    ) -> AbstractContextManager[None]:
        """Return a block during which the answer is offered to others if its engine leaves."""
        if not self._log.can_resume:
            return nullcontext()
        offer = partial(self._offer, attempt, place, answer)
        return attempt.while_answered(place.replica_id, offer)

    def _offer(
        self, attempt: EngineAttempt, place: Reservation, answer: aiohttp.ClientResponse
    ) -> None:
        """Offer the answer to an engine that can resume it, because its own engine is leaving."""
        self.moved = self.moved or "stayed"
        if self.move is not None:
            if not self.move.is_taking.done() or self.move.is_taking.result():
                return
            self._refused_by |= self.move.refused_by
            self._is_last, self.move = self._is_last or self.move.is_last, None
        now, log = asyncio.get_running_loop().time(), self._log
        is_over = self._is_last or log.is_complete or not log.can_resume
        if is_over or now < self._offer_again_at:
            return
        self._offer_again_at = now + AGAIN_S
        avoid = self._refused_by | {place.replica_id}
        if other := attempt.moved(avoid, log.output_tokens, MOST_WAIT_S):
            leg = self._record.trace.attempt(self._record)
            self.move = Move(other, leg, log, self._requests, answer.close)

    async def taken(self) -> Move | None:
        """Wait for the other engine's decision. Return the move if it resumes the answer, or
        None.

        The other engine resumes from the tokens before the request to it. Later tokens of the
        first engine count only if the other does not resume.
        """
        move = self.move
        if move is None or move.asked_at is None or not await move.is_taking:
            return None
        self.move, self.moved = None, "moved"
        return move

    async def close(self) -> None:
        """Cancel a move that is under way: the first engine's answer has ended."""
        move, self.move = self.move, None
        if move is not None:
            await move.cancel()


class Move:
    """A request to the engine of `attempt` to resume an answer. `leave` is called when it does.

    `asked_at`: when it was sent, in loop time; None: not yet. `is_taking` has the engine's
    decision. `refused_by`: the replica that cannot resume. `is_last`: an engine was lost with the
    answer, so the answer is not offered again.
    """

    def __init__(
        self,
        attempt: EngineAttempt,
        leg: Leg,
        log: AnswerLog,
        requests: EngineRequests,
        leave: Callable[[], None],
    ) -> None:
        self.attempt = attempt
        self.leg = leg
        self.asked_at: float | None = None
        self.is_taking: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.refused_by: frozenset[str] = frozenset()
        self.is_last = False
        self._log = log
        self._requests = requests
        self._leave = leave
        self._place: Reservation
        self._answer: aiohttp.ClientResponse
        self._why = ""
        self._is_forwarded = False
        self._forwarded = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def answer(self) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """Yield the engine's place and answer, after `is_taking`. The caller ends the attempt."""
        self._is_forwarded = True
        try:
            yield self._place, self._answer
        finally:
            self._forwarded.set()
            await self._task

    async def cancel(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            with self.leg:
                await self._ask()
        except Exception:  # the first engine still has the answer
            self.is_last = True
            logger.exception("failed to move request %s", self.attempt.request.request_id)
        finally:
            if not self._is_forwarded:
                self.attempt.ended()
            if not self.is_taking.done():
                self.is_taking.set_result(False)

    async def _ask(self) -> None:
        exchange = self.attempt.exchange(self._send)
        try:
            async with asyncio.timeout(GIVE_UP_S) as limit, exchange as (place, answer):
                if answer.status >= 500:
                    raise ReplicaFailed(place.replica_id)
                if answer.status >= 400 or RESUMABLE_HEADER not in answer.headers:
                    self.refused_by = frozenset({place.replica_id})
                    self._why = f"replica {place.replica_id} cannot resume it"
                    raise ReplicaFailed(place.replica_id, was_lost=False)
                limit.reschedule(None)
                self._place, self._answer = place, answer
                self.is_taking.set_result(True)
                self._leave()
                await self._forwarded.wait()
        except (ReplicaFailed, NoReplicaUp, ApiError, TimeoutError) as error:
            self.is_last = isinstance(error, ReplicaFailed) and error.was_lost
            why = self._why or repr(error)
            logger.info("failed to move request %s: %s", self.attempt.request.request_id, why)

    async def _send(self, place: Reservation) -> aiohttp.ClientResponse:
        self.asked_at = asyncio.get_running_loop().time()
        body = self._log.body_to_resume(self.attempt.request.engine_body)
        self.leg.resumes(self._log.output_tokens or 0)
        answer = await self._requests.post(self.attempt, body, place, self.leg)
        if answer.status == NOT_RESERVED:  # `exchange` would make the client wait for a place
            answer.release()
            self._why = f"replica {place.replica_id} is full"
            raise ReplicaFailed(place.replica_id, was_lost=False)
        return answer
