"""One answer on its way from an engine that is taken away to another.

The first engine keeps the answer until the next one has begun to go on with it, and only then is
left: where the next has no room, or cannot, or is lost, nothing has happened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp

from deployments.gateway.attempt.any_attempt import AnyAttempt
from deployments.gateway.attempt.engine_requests import EngineRequests
from deployments.gateway.attempt.transport import NoReplicaUp, ReplicaFailed, Reservation
from deployments.gateway.intake.errors import ApiError
from deployments.wire.answer_log import AnswerLog
from deployments.wire.headers import NOT_RESERVED, RESUMABLE_HEADER
from observability.request_record import Leg, RequestRecord

logger = logging.getLogger("ray.serve")

# An engine whose first token is predicted later has no room: the client's stream waits so long.
MOST_WAIT_S = 5.0
# Where the prediction is wrong.
GIVE_UP_S = 15.0
# Between two offers of one answer.
AGAIN_S = 1.0


class Mover:
    """Of one answer, of which `log` is known: another engine is asked to continue it.

    While `move` is there, nothing more may be passed on before `taken`.
    """

    def __init__(self, record: RequestRecord, log: AnswerLog, requests: EngineRequests) -> None:
        self.move: Move | None = None
        self._record = record
        self._log = log
        self._requests = requests
        self._offer_again_at = 0.0
        self._not_by: frozenset[str] = frozenset()
        self._is_last = False

    def offer(
        self, attempt: AnyAttempt, place: Reservation, answer: aiohttp.ClientResponse
    ) -> None:
        """The engine that gives the answer is leaving: see whether another continues it."""
        self._record.moved = self._record.moved or "stayed"
        if self.move is not None:
            if not self.move.is_taking.done() or self.move.is_taking.result():
                return
            self._not_by |= self.move.not_by
            self._is_last, self.move = self._is_last or self.move.is_last, None
        now, log = asyncio.get_running_loop().time(), self._log
        is_over = self._is_last or log.is_complete or not log.can_continue
        if is_over or now < self._offer_again_at:
            return
        self._offer_again_at = now + AGAIN_S
        avoid = self._not_by | {place.replica_id}
        if there := attempt.moved(avoid, log.output_tokens, MOST_WAIT_S):
            leg = self._record.trace.attempt(self._record)
            self.move = Move(there, leg, self._log, self._requests, answer.close)

    async def taken(self) -> Move | None:
        """The move to an engine that continues the answer, once that is known; None: none does.

        Once another engine was asked, nothing of the first counts any more unless that one cannot.
        """
        move = self.move
        if move is None or move.asked_at is None or not await move.is_taking:
            return None
        self.move, self._record.moved = None, "moved"
        return move

    async def close(self) -> None:
        """The first engine's part is over, and no other has continued the answer."""
        move, self.move = self.move, None
        if move is not None:
            await move.cancel()


class Move:
    """To the engine of `attempt`, which is asked to continue; `leave` the first when it does.

    From `asked_at` on, in loop time, it is not known whether it `is_taking` the answer. `not_by`: a
    replica that cannot; `is_last`: an engine was lost with it, and no other is to be asked.
    """

    def __init__(
        self,
        attempt: AnyAttempt,
        leg: Leg,
        log: AnswerLog,
        requests: EngineRequests,
        leave: Callable[[], None],
    ) -> None:
        self.attempt = attempt
        self.leg = leg
        self.asked_at: float | None = None
        self.is_taking: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.not_by: frozenset[str] = frozenset()
        self.is_last = False
        self._log = log
        self._requests = requests
        self._leave = leave
        self._place: Reservation
        self._answer: aiohttp.ClientResponse
        self._why = ""
        self._is_passed_on = False
        self._passed_on = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @asynccontextmanager
    async def answer(self) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """Where it continues, and how, once that is known; the attempt's end is the caller's."""
        self._is_passed_on = True
        try:
            yield self._place, self._answer
        finally:
            self._passed_on.set()
            await self._task

    async def cancel(self) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            with self.leg:
                await self._ask()
        except Exception:  # the first engine has the answer
            self.is_last = True
            logger.exception("request %s stays", self.attempt.request.request_id)
        finally:
            if not self._is_passed_on:
                self.attempt.ended()
            if not self.is_taking.done():
                self.is_taking.set_result(False)

    async def _ask(self) -> None:
        exchange = self.attempt.transport.exchange(self._send, self.attempt.route)
        try:
            async with asyncio.timeout(GIVE_UP_S) as patience, exchange as (place, answer):
                if answer.status >= 500:
                    raise ReplicaFailed(place.replica_id)
                if answer.status >= 400 or RESUMABLE_HEADER not in answer.headers:
                    self.not_by = frozenset({place.replica_id})
                    self._why = f"replica {place.replica_id} cannot continue it"
                    raise ReplicaFailed(place.replica_id, was_lost=False)
                patience.reschedule(None)
                self._place, self._answer = place, answer
                self.is_taking.set_result(True)
                self._leave()
                await self._passed_on.wait()
        except (ReplicaFailed, NoReplicaUp, ApiError, TimeoutError) as error:
            self.is_last = isinstance(error, ReplicaFailed) and error.was_lost
            why = self._why or repr(error)
            logger.info("request %s stays: %s", self.attempt.request.request_id, why)

    async def _send(self, place: Reservation) -> aiohttp.ClientResponse:
        self.asked_at = asyncio.get_running_loop().time()
        attempt, log = self.attempt, self._log
        body = log.body_to_continue(attempt.request.engine_body)
        assert body is not None, "it can be continued"
        self.leg.continues(log.output_tokens or 0)
        answer = await self._requests.post(
            attempt.request, attempt.path, body, place, self.leg, attempt.expected_cached
        )
        if answer.status == NOT_RESERVED:  # no room: its client would wait until there is some
            answer.release()
            self._why = f"replica {place.replica_id} has no room"
            raise ReplicaFailed(place.replica_id, was_lost=False)
        return answer
