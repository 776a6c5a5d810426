"""Relays an admitted request to engines and the answer back, as an ASGI response.

The engine's events reach the client as they arrive. The generation is aborted when the client
leaves or the deadline passes. A failed replica costs the client the time of a retry, and an error
only if no try is left (`tries`, `recovery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.one_try import RelayedAnswer
from deployments.gateway.answer.resuming import TAKEN_OVER, gateway_stopped
from deployments.gateway.answer.tries import Tries
from deployments.gateway.attempt.any_attempt import AnyAttempt
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import cancelled, client_gone


class Relay(Response):
    """The answer to an admitted request, whose first try is `first`.

    `Tries` gets `retries` and `fatal`. `counts` gets the token counts of an abandoned answer.
    """

    def __init__(
        self,
        answer: RelayedAnswer,
        first: AnyAttempt,
        retries: int,
        fatal: Callable[[], ApiError],
        counts: FinalCounts,
    ) -> None:
        super().__init__()
        self._answer = answer
        self._tries = Tries(answer, first, retries, fatal)
        self._counts = counts
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        answer.client.attach(scope, send)
        work = asyncio.ensure_future(self._tries.run())
        gone = asyncio.ensure_future(client_gone(receive))
        try:
            await self._until_deadline(work, gone)
        except ApiError as error:
            answer.record.failed(error.status, error.code)
            await answer.client.fail(error, scope, receive, answer.log.next_number)
        except Exception:
            answer.record.failed(500, "gateway_error")
            raise
        finally:
            await cancelled(work)
            await cancelled(gone)
            await answer.mover.close()
            await self._count(was_left=work.cancelled() or answer.client.streaming)
            answer.watch.ended(answer.record)

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
            error = answer.request.deadline_passed()
            if self._stopped.done():
                if is_kept := answer.keeping.ends():
                    answer.exchange = None  # another gateway may read the rest
                error = gateway_stopped(is_kept)
            await cancelled(work)
            raise error

    async def _count(self, was_left: bool) -> None:
        """Complete the record with the answer's token counts."""
        answer, record = self._answer, self._answer.record
        if answer.exchange and was_left:
            record.left_at = asyncio.get_running_loop().time()
            await self._counts.take(*answer.exchange, record, answer.log)
        # the new reader of a stream is not charged, so a taken-over stream counts in full
        if record.output_tokens is None and record.error != TAKEN_OVER:
            record.output_tokens = answer.log.counted_tokens
