"""Makes the tries of one request in turn, until its client has the whole answer.

`recovery` decides what follows a failed try.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from dataclasses import replace

from deployments.gateway.answer.fate import Fate
from deployments.gateway.answer.one_try import OneTry, RelayedAnswer, Try
from deployments.gateway.answer.recovery import (
    CannotResume,
    DecideAgain,
    GiveUp,
    Step,
    TryAgain,
    TryFailed,
    next_step,
)
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.wire.inference_paths import inference_path

logger = logging.getLogger("ray.serve")


class Tries:
    """The tries for one answer: the `first`, and those that follow. `fate` records lost engines."""

    def __init__(self, answer: RelayedAnswer, first: EngineAttempt, fate: Fate) -> None:
        self._answer = answer
        self._first = first
        self._fate = fate

    async def run(self) -> None:
        """Return once the client has the whole answer. Raises ApiError: when no try is left, or an
        engine rejects the request."""
        try:
            self._answer.record.trace.placed(self._first.facts)
        except Exception:  # a failed trace must cost neither the request nor its place
            logger.exception("failed to trace request %s", self._answer.request.request_id)
        this = Try(self._first)
        while True:
            record = self._answer.record
            with nullcontext(this.move.leg) if this.move else record.trace.attempt(record) as leg:
                one = OneTry(self._answer, this, leg)
                if (event := await one.run()) is None:
                    is_charged = inference_path(record.facts.path).is_charged
                    if record.prompt_tokens is not None or not is_charged:
                        self._answer.exchange = None
                    return
                if isinstance(event, TryFailed) and event.was_lost and not event.is_leaving:
                    event = await self._with_cause(event)
                can_resume = self._answer.log.can_resume
                started = self._answer.client.started
                course, step = next_step(self._answer.course, event, started, can_resume)
                self._answer.course = course
                if isinstance(event, TryFailed | CannotResume):
                    leg.failed(one.error.code)
                    await self._answer.mover.close()
                elif isinstance(step, GiveUp):
                    raise one.error
                if isinstance(event, TryFailed) and step == GiveUp(is_memory=True):
                    raise self._fate.out_of_memory(event.replica_id)
            this = one.next or await self._next(this, one, step)

    async def _with_cause(self, lost: TryFailed) -> TryFailed:
        """Record the loss, and return it with its cause if that matters.

        A request that has tokens does not wait for the cause: what it needs was in memory.
        """
        self._fate.lost(lost.replica_id)
        if lost.ran_out_of_memory or self._answer.log.reported_tokens or self._answer.log.events:
            return lost
        is_memory = await self._fate.ran_out_of_memory(lost.replica_id)
        return replace(lost, ran_out_of_memory=is_memory)

    async def _next(self, this: Try, one: OneTry, step: Step) -> Try:
        """Return the next try. Raises ApiError, for the client: when there is none."""
        answer, course = self._answer, self._answer.course
        if isinstance(step, DecideAgain):
            answer.restart()  # another model may answer
            return Try(await this.attempt.elsewhere())
        if isinstance(step, TryAgain) and step.wait_s:
            await asyncio.sleep(step.wait_s)
        failed_at = asyncio.get_running_loop().time()
        logger.warning(
            "request %s failed on replicas %s", answer.request.request_id, [*course.failed]
        )
        if not isinstance(step, TryAgain):
            is_fatal = isinstance(step, GiveUp) and step.is_fatal
            raise self._fate.fatal(course.lost) if is_fatal else one.error
        if step.resumes:
            attempt = this.attempt.again(step.avoid, answer.log.output_tokens)
            return Try(attempt, "resumed", failed_at)
        answer.restart()
        return Try(this.attempt.again(step.avoid))
