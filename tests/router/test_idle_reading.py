"""The load board is read when a request needs it, and rarely otherwise."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from router.board.load import LoadBoard, ReplicaLoad
from router.board.load_reader import IDLE_PERIOD_S, READ_PERIOD_S, LoadReader
from router.board.pool_feeds import PoolFeeds
from router.index import slots, sweeper
from router.index.publisher import HEARTBEAT_S, RENEW_S
from router.redis.redis_client import AsyncRedis, connect
from tests.router.index_engine import replica_on
from tests.router.index_redis import POOL
from tests.router.loads import load
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

BUDGET_S = 60.0


async def publish(redis: AsyncRedis, replica: ReplicaLoad) -> None:
    slot = await slots.claim(redis, POOL, replica.incarnation)
    assert slot == replica.slot
    assert await slots.renew(redis, POOL, slot, replica.incarnation, replica.to_json())


async def calls_of(redis: AsyncRedis, command: str) -> int:
    stats = await redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_an_idle_gateway_reads_rarely(redis_url: str) -> None:
    redis = connect(redis_url)
    reader = LoadReader(redis, POOL, LoadBoard(time.monotonic))
    task = asyncio.create_task(reader.run(lambda: IDLE_PERIOD_S))
    await redis.config_resetstat()
    began = time.monotonic()
    await asyncio.sleep(3 * IDLE_PERIOD_S)
    # the first one is at once, the second may be half a period later
    most = (time.monotonic() - began) / IDLE_PERIOD_S + 2
    assert 1 <= await calls_of(redis, "hgetall") <= most
    assert reader.board.is_read
    await cancelled(task)
    await redis.aclose()


async def test_an_idle_sweeper_reuses_the_slots_that_were_read_with_the_loads(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "SWEEP_PERIOD_S", 0.02)
    text, binary = connect(redis_url), connect(redis_url, decode=False)
    await publish(text, load("r0", slot=0))
    board = LoadBoard(time.monotonic)
    feeds = PoolFeeds(text, binary, POOL, board, "g", lambda placed: None, BUDGET_S)
    task = asyncio.create_task(feeds.run(lambda: IDLE_PERIOD_S))
    await until(lambda: board.is_read)
    await text.config_resetstat()
    began = time.monotonic()
    await asyncio.sleep(3 * IDLE_PERIOD_S)
    most = (time.monotonic() - began) / IDLE_PERIOD_S + 2
    assert 1 <= await calls_of(text, "hgetall") <= most
    await cancelled(task)
    await text.aclose()
    await binary.aclose()


async def test_a_request_is_placed_by_fresh_loads_after_an_idle_time(redis_url: str) -> None:
    redis = connect(redis_url)
    reader = LoadReader(redis, POOL, LoadBoard(time.monotonic))
    task = asyncio.create_task(reader.run(lambda: IDLE_PERIOD_S))
    await until(lambda: reader.board.is_read)
    for waiting in range(3):
        await publish(redis, load("r0", slot=0, waiting=waiting))
        await asyncio.sleep(1.1 * READ_PERIOD_S)
        await reader.fresh(BUDGET_S)
        assert reader.board.loads()["r0"].queue.waiting == waiting
    await cancelled(task)
    await redis.aclose()


async def test_concurrent_requests_share_one_read(redis_url: str) -> None:
    redis = connect(redis_url)
    reader = LoadReader(redis, POOL, LoadBoard(time.monotonic))
    task = asyncio.create_task(reader.run(lambda: IDLE_PERIOD_S))
    await until(lambda: reader.board.is_read)
    await asyncio.sleep(1.1 * READ_PERIOD_S)
    await redis.config_resetstat()
    began = time.monotonic()
    await asyncio.gather(*(reader.fresh(BUDGET_S) for _ in range(50)))
    # on a busy machine the next periodic reading may fall into this
    assert await calls_of(redis, "hgetall") <= 1 + (time.monotonic() - began) / READ_PERIOD_S
    await cancelled(task)
    await redis.aclose()


async def test_a_hanging_redis_delays_requests_by_one_budget_in_total(
    server: RedisProcess, redis_url: str
) -> None:
    redis = connect(redis_url)
    reader = LoadReader(redis, POOL, LoadBoard(time.monotonic))
    task = asyncio.create_task(reader.run(lambda: IDLE_PERIOD_S))
    await until(lambda: reader.board.is_read)
    await asyncio.sleep(1.1 * READ_PERIOD_S)
    server.process.send_signal(signal.SIGSTOP)
    try:
        waited = 0
        for _ in range(100):
            request = asyncio.create_task(reader.fresh(0.2))
            await asyncio.sleep(0)  # one that need not wait has ended after its turn
            waited += not request.done()
            await request
        assert waited == 1
    finally:
        server.process.send_signal(signal.SIGCONT)
    await cancelled(task)
    await redis.aclose()


async def test_a_lease_that_stays_the_same_is_renewed_rarely(
    redis_url: str, server: RedisProcess
) -> None:
    redis = connect(redis_url)
    async with replica_on(redis) as replica:
        await until(lambda: replica.leases and replica.leases[-1].synced)
        await redis.config_resetstat()
        beats, began = len(replica.leases), time.monotonic()
        await asyncio.sleep(4 * RENEW_S)
        renewals = await calls_of(redis, "evalsha")
        assert 1 <= renewals <= (time.monotonic() - began) / RENEW_S + 2
        # it looked for changes more often than it wrote
        assert len(replica.leases) - beats > renewals
        assert HEARTBEAT_S < RENEW_S < slots.LEASE_S / 2
    await redis.aclose()
