"""Makes the tries of one request in turn, until its client has the whole answer.

`recovery` decides what follows a failed try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import nullcontext

from deployments.gateway.answer.one_try import OneTry, RelayedAnswer, Try
from deployments.gateway.answer.recovery import (
    CannotContinue,
    Course,
    DecideAgain,
    GiveUp,
    Step,
    TryAgain,
    TryFailed,
    next_step,
)
from deployments.gateway.attempt.any_attempt import AnyAttempt
from deployments.gateway.intake.errors import ApiError

logger = logging.getLogger("ray.serve")


class Tries:
    """The tries for one answer: the `first`, and up to `retries` more that count. `fatal` is called
    when every try lost its engine, and returns the client's error."""

    def __init__(
        self, answer: RelayedAnswer, first: AnyAttempt, retries: int, fatal: Callable[[], ApiError]
    ) -> None:
        self._answer = answer
        self._first = first
        self._retries = retries
        self._fatal = fatal

    async def run(self) -> None:
        """Return once the client has the whole answer. Raises ApiError: when no try is left, or an
        engine rejects the request."""
        try:
            self._answer.record.trace.placed(self._first.facts)
        except Exception:  # a failed trace must cost neither the request nor its place
            logger.exception("request %s is not traced", self._answer.request.request_id)
        course, this = Course(self._retries), Try(self._first)
        while True:
            record = self._answer.record
            with nullcontext(this.move.leg) if this.move else record.trace.attempt(record) as leg:
                one = OneTry(self._answer, this, leg)
                if (event := await one.run()) is None:
                    record.outcome, self._answer.exchange = "ok", None
                    return
                can_continue = self._answer.log.can_continue
                started = self._answer.client.started
                course, step = next_step(course, event, started, can_continue)
                if isinstance(event, TryFailed | CannotContinue):
                    leg.failed(one.error.code)
                    await self._answer.mover.close()
                elif isinstance(step, GiveUp):
                    raise one.error
            this = one.next or await self._next(this, one, course, step)

    async def _next(self, this: Try, one: OneTry, course: Course, step: Step) -> Try:
        """Return the next try. Raises ApiError, for the client: when there is none."""
        answer, record = self._answer, self._answer.record
        if isinstance(step, DecideAgain):
            answer.restart()  # another model may answer
            return Try(await this.attempt.elsewhere())
        if isinstance(step, TryAgain) and step.wait_s:
            await asyncio.sleep(step.wait_s)
        failed_at = asyncio.get_running_loop().time()
        logger.warning("request %s failed on %s", answer.request.request_id, [*course.failed])
        if record.resumed == "continued":
            record.resumed = "failed"
        if not isinstance(step, TryAgain):
            if answer.client.started and not record.resumed:
                record.resumed = "impossible"
            raise self._fatal() if isinstance(step, GiveUp) and step.is_fatal else one.error
        if step.continues:
            record.resumed = "failed"  # until another engine continues the answer
            attempt = this.attempt.again(step.avoid, answer.log.output_tokens)
            return Try(attempt, "resumed", failed_at)
        answer.restart()
        return Try(this.attempt.again(step.avoid))
