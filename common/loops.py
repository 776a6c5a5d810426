"""Background loops: a step that is repeated, even if it raises.

Each cause of an error is logged once while it lasts, and the step is retried with growing delays.
Unexpected errors are counted in `failures`, by loop: the metric `antefix_loop_failures_total`.
`Loops` knows which tasks ended nevertheless, for health checks.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

logger = logging.getLogger("ray.serve")

# Wait after a failed step; each unexpected failure in a row doubles it.
RETRY_S = 0.1
RETRY_AT_MOST_S = 2.0
# A cause that did not occur for this long is logged again.
FORGET_S = 60.0
AGAIN_S = 0.02
# Of this process, in whole milliseconds like event loops' timers, so that the processes of a node
# do not all call Redis at once.
_PHASE_S = random.randrange(1000) / 1000

Outages = tuple[type[BaseException], ...]

# Failures of this process by loop; 0 for each loop that has started.
failures: Counter[str] = Counter()


class Trouble:
    """The errors of one loop's steps.

    `fails` starts the log line. `outages` are expected from time to time: they are logged in one
    line, are not counted, and do not slow down the loop.
    """

    def __init__(
        self, loop: str, fails: str, logger: logging.Logger, outages: Outages = ()
    ) -> None:
        self._loop = loop
        self._fails = fails
        self._logger = logger
        self._outages = outages
        # cause -> time of its last occurrence
        self._met: dict[str, float] = {}
        self._in_a_row = 0
        failures[loop] += 0

    def over(self) -> None:
        """Record a step that succeeded."""
        self._in_a_row = 0

    def met(self, error: BaseException) -> float:
        """Record an error of a step. Return the delay before the next step, in seconds."""
        expected = isinstance(error, self._outages)
        cause = "outage" if expected else _cause(error)
        now = time.monotonic()
        known = now - self._met.get(cause, float("-inf")) < FORGET_S
        self._met[cause] = now
        if expected:
            if not known:
                self._logger.warning("%s: %s", self._fails, str(error) or repr(error))
            return RETRY_S
        failures[self._loop] += 1
        if not known:
            self._logger.error("%s; retrying: %r", self._fails, error, exc_info=error)
        self._in_a_row += 1
        return float(min(RETRY_AT_MOST_S, RETRY_S * 2 ** min(self._in_a_row - 1, 10)))


async def forever(
    loop: str,
    step: Callable[[], Awaitable[object]],
    period_s: float = 0.0,
    *,
    fails: str,
    logger: logging.Logger,
    outages: Outages = (),
) -> NoReturn:
    """Run the step about every `period_s` until cancelled; 0 repeats it at once.

    Steps of loops with the same period, or a multiple of it, run at the same moments: an idle
    process wakes once for all of them. `loop` is the name in the metric; `Trouble` describes the
    other arguments.
    """
    trouble = Trouble(loop, fails, logger, outages)
    while True:
        wait_s: float | None = None
        try:
            await step()
            trouble.over()
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            # something inside was cancelled, not this task
            wait_s = max(period_s, trouble.met(error))
        except Exception as error:
            wait_s = max(period_s, trouble.met(error))
        if _is_cancelled():
            # a cancellation that Python 3.11's `wait_for` lost
            raise asyncio.CancelledError
        if wait_s is None:
            wait_s = until_next(period_s, asyncio.get_running_loop().time())
        await asyncio.sleep(wait_s)


def until_next(period_s: float, now: float) -> float:
    """Return the seconds until the next moment of the period that is at least half a period
    ahead."""
    if not period_s:
        return 0.0
    left_s = period_s - (now + _PHASE_S) % period_s
    return left_s if left_s > period_s / 2 else left_s + period_s


def forever_in_thread(
    loop: str, step: Callable[[], object], *, fails: str, logger: logging.Logger
) -> None:
    """Run `forever` in a daemon thread, without an end."""
    trouble = Trouble(loop, fails, logger)

    def run() -> NoReturn:
        while True:
            wait_s = 0.0
            try:
                step()
                trouble.over()
            except Exception as error:
                wait_s = trouble.met(error)
            time.sleep(wait_s)

    threading.Thread(target=run, daemon=True, name=loop).start()


class Loops:
    """Tasks that run until `stop`. `ended` names each that ended earlier, once."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._tasks: dict[asyncio.Task[Any], str] = {}

    def start(self, loop: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine, name=loop)
        self._tasks[task] = loop
        task.add_done_callback(self._done)
        return task

    async def stop(self, *tasks: asyncio.Task[Any]) -> None:
        """Cancel these tasks, or all."""
        stopping = {task for task in tasks or list(self._tasks) if self._tasks.pop(task, None)}
        while stopping:
            for task in stopping:
                task.cancel()
            # Repeated if necessary: Python 3.11 can lose a cancellation in `wait_for`.
            _, stopping = await asyncio.wait(stopping, timeout=AGAIN_S)

    def _done(self, task: asyncio.Task[Any]) -> None:
        loop = self._tasks.pop(task, None)
        if loop is None:  # stopped
            return
        error = None if task.cancelled() else task.exception()
        logger.error("the background loop %s has ended: %r", loop, error, exc_info=error)
        if loop not in self.ended:
            self.ended.append(loop)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cause(error: BaseException) -> str:
    """Return the kind of error and where it was raised. Its message may differ each time."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else ""
    return f"{type(error).__qualname__} {where}"
