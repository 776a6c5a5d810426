"""Background loops: nothing that a step raises ends one, and nothing ends one unseen."""

import asyncio
import contextlib
import logging
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common import loops
from common.loops import Loops, forever, forever_in_thread
from tests.waiting import cancelled, until

logger = logging.getLogger("test_loops")


class Steps:
    """Raises what `raises` says, one after another, and then nothing."""

    def __init__(self, *raises: BaseException) -> None:
        self._raises = list(raises)
        self.taken = 0

    async def __call__(self) -> None:
        self.take()

    def take(self) -> None:
        if self._raises:
            raise self._raises.pop(0)
        self.taken += 1


async def run_until_taken(steps: Steps, loop: str, outages: loops.Outages = ()) -> None:
    task = asyncio.create_task(
        forever(loop, steps, 0.005, fails="nothing was done", logger=logger, outages=outages)
    )
    await until(lambda: steps.taken >= 2)
    await cancelled(task)


async def test_a_failed_step_is_retried_and_counted_for_any_exception() -> None:
    await run_until_taken(Steps(RuntimeError("a"), EOFError(), AttributeError("b")), "counted")
    assert loops.failures["counted"] == 3


@given(st.floats(0, 1e6), st.integers(1, 50), st.integers(1, 20))
def test_loops_whose_periods_are_multiples_run_at_the_same_moments(
    now: float, milliseconds: int, times: int
) -> None:
    period_s = milliseconds / 1000
    next_s = loops.until_next(period_s, now)
    assert 0.49 * period_s < next_s < 1.51 * period_s
    # half a millisecond: an event loop's timers have whole ones
    later = now + loops.until_next(times * period_s, now)
    off_s = (later - now - next_s) % period_s
    assert min(off_s, period_s - off_s) < 0.0005


def test_a_loop_without_a_period_waits_for_nothing() -> None:
    assert loops.until_next(0.0, 12.3) == 0.0


async def test_a_loop_is_counted_from_0_on() -> None:
    await run_until_taken(Steps(), "sound")
    assert loops.failures["sound"] == 0 and "sound" in loops.failures


async def test_each_kind_of_failure_is_logged_once_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await run_until_taken(Steps(RuntimeError("a"), RuntimeError("b"), KeyError("c")), "logged")
    assert [record.message for record in caplog.records] == [
        "nothing was done; retrying: RuntimeError('a')",
        "nothing was done; retrying: KeyError('c')",
    ]
    assert all(record.exc_info for record in caplog.records)


async def test_an_outage_is_one_line_and_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    steps = Steps(ConnectionError("no route"), ConnectionError("refused"))
    await run_until_taken(steps, "outage", outages=(OSError,))
    assert [record.message for record in caplog.records] == ["nothing was done: no route"]
    assert caplog.records[0].exc_info is None
    assert loops.failures["outage"] == 0


def test_each_failure_in_a_row_waits_longer_and_none_longer_than_two_seconds() -> None:
    trouble = loops.Trouble("slower", "nothing was done", logger)
    waits = [trouble.met(RuntimeError()) for _ in range(2000)]
    assert waits[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert max(waits) == 2.0
    trouble.over()
    assert trouble.met(RuntimeError()) == 0.1


async def test_a_cancellation_inside_a_step_does_not_end_the_loop() -> None:
    await run_until_taken(Steps(asyncio.CancelledError()), "inside")
    assert loops.failures["inside"] == 1


async def test_a_cancellation_that_a_step_swallows_ends_the_loop() -> None:
    waits = asyncio.Event()

    async def swallows() -> None:
        waits.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    task = asyncio.create_task(forever("swallowed", swallows, fails="", logger=logger))
    await waits.wait()
    task.cancel()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()


async def test_a_loop_that_ended_by_itself_is_named_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def returns() -> None:
        pass

    async def dies() -> None:
        raise SystemError("the interpreter")

    owned = Loops()
    owned.start("returned", returns())
    owned.start("died", dies())
    owned.start("cancelled", asyncio.Event().wait()).cancel()
    await until(lambda: len(owned.ended) == 3)
    assert sorted(owned.ended) == ["cancelled", "died", "returned"]
    assert "the background loop died has ended: SystemError('the interpreter')" in caplog.text


async def test_loops_that_are_stopped_have_not_ended_by_themselves() -> None:
    owned = Loops()
    first = owned.start("first", asyncio.Event().wait())
    second = owned.start("second", asyncio.Event().wait())
    await owned.stop(first)
    assert first.done() and not second.done()
    await owned.stop()
    assert second.done() and not owned.ended


def test_a_thread_continues_after_its_step_raised_an_exception() -> None:
    again = threading.Event()
    steps = Steps(RuntimeError("a"))

    def step() -> None:
        steps.take()
        again.set()
        threading.Event().wait()

    forever_in_thread("thread", step, fails="nothing was done", logger=logger)
    assert again.wait(60)
    assert loops.failures["thread"] == 1
