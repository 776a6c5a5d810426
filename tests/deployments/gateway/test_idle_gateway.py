"""An idle gateway sleeps: its loops share their wakes."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

import pytest

from deployments.gateway.attempt import moves
from deployments.gateway.attempt.moves import Moves
from router.load import LoadBoard
from tests.fakes.front import gateway_before
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

LOOKED_AT_S = 4.0
# Moments of all loops come twice a second, each with a few replies of Redis.
WAKES_PER_S = 12


class CountingSelector(selectors.DefaultSelector):
    """`waits`: how often its event loop went to sleep."""

    waits = 0

    def select(self, timeout: float | None = None) -> Any:
        self.waits += timeout is None or timeout > 0
        return super().select(timeout)


def test_an_idle_gateway_is_woken_rarely(server: RedisProcess) -> None:
    selector = CountingSelector()

    async def wakes_per_s() -> float:
        async with gateway_before(redis_url=server.url) as front:
            await until(lambda: front.pool.scheduler.board.is_read)
            await asyncio.sleep(2.0)  # for connections that are opened once
            waits, began = selector.waits, time.monotonic()
            await asyncio.sleep(LOOKED_AT_S)
            return (selector.waits - waits) / (time.monotonic() - began)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        assert runner.run(wakes_per_s()) <= WAKES_PER_S


class _Board(LoadBoard):
    """Counts calls that ask whether it is current."""

    looks = 0

    @property
    def is_read(self) -> bool:
        self.looks += 1
        return True


async def test_without_answers_no_move_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PERIOD_S", 0.001)
    board = _Board(time.monotonic)
    looked_for = Moves(board, after_s=1.0)
    task = asyncio.create_task(looked_for.run())
    await asyncio.sleep(0.05)
    assert board.looks == 0
    offer: Callable[[], None] = lambda: None  # noqa: E731
    with looked_for.offering("r0", offer):
        await until(lambda: board.looks > 1)
    await cancelled(task)
