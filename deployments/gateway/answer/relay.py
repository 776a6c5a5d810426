"""One request on its way to an engine and back, as an ASGI response.

Nothing is lost on the way: the engine's events reach the client as they come, a client that leaves
aborts the generation, a deadline ends it, and a replica that fails costs the client a retry's time,
not an error (`tries`, `recovery`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from deployments.gateway.answer.final_count import FinalCounts
from deployments.gateway.answer.one_try import RelayedAnswer
from deployments.gateway.answer.rejoining import TAKEN_OVER, gateway_stopped
from deployments.gateway.answer.tries import Tries
from deployments.gateway.attempt.any_attempt import AnyAttempt
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import cancelled, client_gone


class Relay(Response):
    """Carries a request that was admitted to where `first` says, and its answer back.

    `retries` and `fatal` are as of `Tries`. `counts` has the tokens of an answer that is left.
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
        answer.client.goes_to(scope, send)
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
        """This gateway cannot wait for its answer any more: its client gets an error."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _until_deadline(self, work: asyncio.Task[None], gone: asyncio.Task[None]) -> None:
        """Return once the answer is whole, or its client gone. Raises ApiError."""
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
                    answer.exchange = None  # for another gateway
                error = gateway_stopped(is_kept)
            await cancelled(work)
            raise error

    async def _count(self, was_left: bool) -> None:
        """Complete the record with the tokens of the answer."""
        answer, record = self._answer, self._answer.record
        if answer.exchange and was_left:
            record.left_at = asyncio.get_running_loop().time()
            await self._counts.take(*answer.exchange, record, answer.log)
        # who reads on is not charged: a stream that was taken over counts in full
        if record.output_tokens is None and record.error != TAKEN_OVER:
            record.output_tokens = answer.log.counted_tokens
