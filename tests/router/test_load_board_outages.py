"""Redis stops and restarts: the board empties in time, never raises, and fills again."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from router.board.load import LoadBoard
from router.board.load_reader import LoadReader
from router.index.cached_blocks import CachedBlocks
from router.index.publisher import IndexPublisher, Lease
from router.index.slots import LEASE_S
from router.redis.redis_client import connect
from tests.ports import free_ports
from tests.router.index_engine import HASHER, SEGMENT_TOKENS, Feed
from tests.router.loads import load
from tests.router.redis_process import running
from tests.waiting import cancelled, until

# The board notices within a lease; the rest is for a slow machine.
WITHIN_S = LEASE_S + 30.0
BACK_WITHIN_S = 60.0


@asynccontextmanager
async def board_and_publisher(url: str) -> AsyncIterator[LoadBoard]:
    """A gateway's board and a replica's publisher; neither may end by itself."""
    publishing, reading = connect(url), connect(url)
    publisher = IndexPublisher(
        publishing, "main", CachedBlocks(HASHER, "main", None, SEGMENT_TOKENS), _snapshot
    )
    board = LoadBoard(time.monotonic)
    task = asyncio.create_task(LoadReader(reading, "main", board).run())
    publisher.start(Feed().batches)
    try:
        yield board
        assert not task.done()
        assert publisher.ended == []
    finally:
        await cancelled(task)
        async with asyncio.timeout(60):
            await publisher.stop()
        await publishing.aclose()
        await reading.aclose()


def _snapshot(lease: Lease) -> str:
    return load("a", slot=lease.slot, incarnation=lease.incarnation).to_json()


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
            assert set(board.last_known()) == {"a"}
            if how == "killed":
                servers.enter_context(running(tmp_path, port, f"port {port}"))
            else:
                os.kill(pid, signal.SIGCONT)
            await until(lambda: bool(board.loads()), BACK_WITHIN_S)


async def test_after_a_flush_a_replica_is_back_in_its_slot_as_another_incarnation(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    with running(tmp_path, port, f"port {port}"):
        url = f"redis://127.0.0.1:{port}/0"
        redis = connect(url)
        async with board_and_publisher(url) as board:
            await until(lambda: bool(board.loads()), BACK_WITHIN_S)
            before = board.loads()["a"]
            await redis.flushall()
            await until(
                lambda: (
                    [of.incarnation for of in board.loads().values()]
                    not in ([], [before.incarnation])
                ),
                BACK_WITHIN_S,
            )
            assert board.loads()["a"].slot == before.slot
        await redis.aclose()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster", "redis+sentinel"])
async def test_without_redis_the_board_is_empty(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{scheme}://127.0.0.1:1" + ("/service" if "sentinel" in scheme else "")
    async with board_and_publisher(url) as board:
        # once both have tried
        for fails in (
            "failed to read the load board of main",
            "failed to write the index of a replica of main",
        ):
            await until(partial(_is_logged, caplog, fails))
        assert board.loads() == board.last_known() == {}


def _is_logged(caplog: pytest.LogCaptureFixture, message: str) -> bool:
    return any(message in record.getMessage() for record in caplog.records)
