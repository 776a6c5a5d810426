"""Relays an admitted request to engines and the answer back, as an ASGI response.

The engine's events reach the client as they arrive. The generation is aborted when the client
leaves or the deadline passes. A failed replica costs the client the time of a retry, and an error
only if no try is left (`tries`, `recovery`).
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.gateway.answer.fate import Fate
from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.one_try import RelayedAnswer
from deployments.gateway.answer.tries import Tries
from deployments.gateway.api.load_codes import GATEWAY_ERROR, GATEWAY_STOPPED
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import cancelled, client_gone
from observability.traces.request_record import CLIENT_LEFT, AnswerEnd, Outcome, outcome_of

# The status and the code of an error.
_Failure = tuple[int, str]


class Relay(Response):
    """The answer to an admitted request, whose first try is `first`.

    `Tries` gets `fate`. `counts` gets the token counts of an abandoned answer.
    """

    def __init__(
        self, answer: RelayedAnswer, first: EngineAttempt, fate: Fate, counts: FinalCounts
    ) -> None:
        super().__init__()
        self._answer = answer
        self._tries = Tries(answer, first, fate)
        self._counts = counts
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        answer.client.attach(scope, send)
        work = asyncio.ensure_future(self._tries.run())
        gone = asyncio.ensure_future(client_gone(receive))
        failure: _Failure | None = None
        try:
            await self._until_deadline(work, gone)
        except ApiError as error:
            failure = error.status, error.code
            await answer.client.fail(error, scope, receive, answer.log.next_number)
        except Exception:
            failure = 500, GATEWAY_ERROR.name
            raise
        finally:
            await cancelled(work)
            await cancelled(gone)
            await answer.mover.close()
            answer.watch.ended(answer.record, await self._end(work, failure))

    def stop(self) -> None:
        """End the answer with an error, because this gateway stops."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _until_deadline(self, work: asyncio.Task[None], gone: asyncio.Task[None]) -> None:
        """Return once the answer is complete, or its client has left. Raises ApiError: when it
        failed, at the deadline, and when the gateway stops."""
        answer = self._answer
        timeout = max(0.0, answer.request.deadline - asyncio.get_running_loop().time())
        either: set[asyncio.Future[None]] = {work, gone, self._stopped}
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        elif not gone.done():
            await cancelled(work)
            raise _stopped() if self._stopped.done() else answer.request.deadline_passed()

    async def _end(self, work: asyncio.Task[None], failure: _Failure | None) -> AnswerEnd:
        """Return how the answer ended: `work` is done, and `failure` is the error of its client."""
        answer, clock = self._answer, asyncio.get_running_loop().time
        client, course, finish = answer.client, answer.course, answer.engine.finish
        outcome: Outcome = "cancelled"
        if failure is not None:
            outcome = outcome_of(*failure)
        elif not work.cancelled() and work.exception() is None:
            outcome = "ok"
        left_at = clock()
        if answer.exchange:
            await self._counts.take(*answer.exchange, answer.record, answer.log)
        was_left = outcome != "ok" and (work.cancelled() or client.streaming)
        tokens = finish.output_tokens
        status, error = failure or (CLIENT_LEFT, "")
        return AnswerEnd(
            duration_s=(left_at if was_left else clock()) - answer.record.arrived,
            outcome=outcome,
            status=client.status or status,
            error=error,
            output_tokens=answer.log.counted_tokens if tokens is None else tokens,
            finish_reason=finish.reason,
            resumed=course.resumed,
            moved=answer.mover.moved,
            resume_mode=course.resume_mode,
        )


def _stopped() -> ApiError:
    """Return the error for an answer that outlasts its gateway."""
    message = "The gateway shut down before the answer was complete. Send the request again."
    return ApiError(GATEWAY_STOPPED, message, retry_after=1)
