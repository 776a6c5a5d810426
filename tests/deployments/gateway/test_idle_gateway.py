"""The loops of an idle gateway share their wakes, so that the process sleeps in between."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

import pytest

from deployments.gateway.attempt import moves
from deployments.gateway.attempt.moves import Moves
from router.board.load import LoadBoard
from tests.fakes.front import gateway_before
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

LOOKED_AT_S = 4.0
# Moments of all loops come twice a second, each with some commands to Redis. On a busy machine
# both come more rarely; how many wakes deliver a reply would depend on it.
TIMERS_PER_S, COMMANDS_PER_S = 5, 22


class CountingSelector(selectors.DefaultSelector):
    """`timers`: how often its event loop was woken by nothing but the time."""

    timers = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(timeout)
        self.timers += not ready and timeout is not None and timeout > 0
        return ready


def test_an_idle_gateway_is_woken_rarely(server: RedisProcess) -> None:
    selector = CountingSelector()

    async def per_s() -> tuple[float, float]:
        """Return the wakes by timers and the commands to Redis."""
        async with gateway_before(redis_url=server.url) as front:
            await until(lambda: front.pool.scheduler.board.is_read)
            await asyncio.sleep(2.0)  # for connections that are opened once
            timers, commands, began = selector.timers, commands_of(server), time.monotonic()
            await asyncio.sleep(LOOKED_AT_S)
            took_s = time.monotonic() - began
            found = (selector.timers - timers, commands_of(server) - commands)
            return found[0] / took_s, found[1] / took_s

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        timers, commands = runner.run(per_s())
    assert 0 < timers <= TIMERS_PER_S
    assert 0 < commands <= COMMANDS_PER_S


def commands_of(server: RedisProcess) -> int:
    with control(server) as client:
        info: Any = client.info("stats")
    return int(info["total_commands_processed"])


class _Board(LoadBoard):
    """Counts calls that ask whether it is current."""

    looks = 0

    @property
    def is_read(self) -> bool:
        self.looks += 1
        return True


async def test_without_running_answers_moves_are_not_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
