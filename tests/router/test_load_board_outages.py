"""Redis goes and comes back: the board empties in time, never raises, and fills again."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from deployments.local.ports import free_ports
from router.load import LOAD_TTL_S, LoadBoard, LoadPublisher
from router.redis_client import connect
from tests.router.loads import load
from tests.router.redis_process import running
from tests.waiting import until

# The board notices within the TTL; the rest is for a slow machine.
WITHIN_S = LOAD_TTL_S + 1.0
BACK_WITHIN_S = 5.0


@asynccontextmanager
async def board_and_publisher(url: str) -> AsyncIterator[LoadBoard]:
    """A gateway's board and a replica's publisher; neither may end by itself."""
    publishing, reading = connect(url), connect(url)
    publisher = LoadPublisher(publishing, "main", lambda: load("a"))
    board = LoadBoard(reading, "main")
    task = asyncio.create_task(board.run())
    publisher.start()
    try:
        yield board
        assert not task.done()
        assert publisher._task is not None and not publisher._task.done()
    finally:
        task.cancel()
        async with asyncio.timeout(5):
            await publisher.stop()
        await publishing.aclose()
        await reading.aclose()


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_an_outage_empties_the_board_and_its_end_fills_it(tmp_path: Path, how: str) -> None:
    (port,) = free_ports(1)
    with ExitStack() as servers:
        server = servers.enter_context(running(tmp_path, port, f"port {port}"))
        async with board_and_publisher(f"redis://127.0.0.1:{port}/0") as board:
            await until(lambda: bool(board.loads()), BACK_WITHIN_S)
            pid = server.process.pid
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            await until(lambda: not board.loads(), WITHIN_S)
            if how == "killed":
                servers.enter_context(running(tmp_path, port, f"port {port}"))
            else:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: bool(board.loads()), BACK_WITHIN_S)


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
async def test_a_redis_that_was_never_there_is_an_empty_board(scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:1" + ("/service" if "sentinel" in scheme else "")
    async with board_and_publisher(url) as board:
        await asyncio.sleep(0.5)
        assert board.loads() == {}
