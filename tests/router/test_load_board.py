"""The load board on a real Redis: what replicas publish, gateways read."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from deployments.local import redis_server
from deployments.local.redis_server import RedisServer
from router import load as board_of
from router.load import LOAD_TTL_S, SNAPSHOT_LAG_S, LoadBoard, LoadPublisher, publish, withdraw
from router.redis_client import AsyncRedis, connect
from tests.router.loads import load
from tests.waiting import until

POOL = "main"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder = tmp_path_factory.mktemp("redis")
    started = redis_server.start(folder / "data", folder / "redis.log", os.environ)
    yield started
    redis_server.stop(started)


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[AsyncRedis]:
    client = connect(server.url)
    await client.flushall()
    yield client
    await client.aclose()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_what_a_replica_publishes_is_read_as_it_is(redis: AsyncRedis) -> None:
    one, other = load("a", kv_use=0.123456789, waiting=3), load("b:[::1]", url="http://[::1]:1")
    await publish(redis, POOL, one)
    await publish(redis, POOL, other)
    assert await board_of.read(redis, POOL) == {"a": one, "b:[::1]": other}


async def test_the_last_snapshot_counts(redis: AsyncRedis) -> None:
    await publish(redis, POOL, load("a", waiting=1))
    await publish(redis, POOL, load("a", waiting=2))
    assert (await board_of.read(redis, POOL))["a"].waiting == 2


async def test_pools_do_not_see_each_other(redis: AsyncRedis) -> None:
    await publish(redis, POOL, load("a"))
    assert await board_of.read(redis, "other") == {}


async def test_a_withdrawn_replica_is_gone_at_once(redis: AsyncRedis) -> None:
    await publish(redis, POOL, load("a"))
    await publish(redis, POOL, load("b"))
    await withdraw(redis, POOL, "a")
    assert list(await board_of.read(redis, POOL)) == ["b"]


async def test_a_replica_that_stops_publishing_expires_and_is_forgotten(redis: AsyncRedis) -> None:
    await publish(redis, POOL, load("a"))
    left = await redis.pttl(f"{{afx:{POOL}}}:load:a")
    assert 0 < left <= LOAD_TTL_S * 1000
    await redis.delete(f"{{afx:{POOL}}}:load:a")  # as its expiry does
    assert await board_of.read(redis, POOL) == {}
    assert await redis.keys() == []


async def test_a_publisher_keeps_its_replica_on_the_board_until_it_stops(redis: AsyncRedis) -> None:
    waiting = 0

    def measure() -> board_of.ReplicaLoad:
        return load("a", waiting=waiting)

    publisher = LoadPublisher(redis, POOL, measure)
    publisher.start()
    board = LoadBoard(redis, POOL)
    reading = asyncio.create_task(board.run())
    await until(lambda: "a" in board.loads())
    waiting = 7
    await until(lambda: board.loads()["a"].waiting == 7)
    await publisher.stop()
    await until(lambda: not board.loads())
    reading.cancel()


async def test_a_value_that_is_no_load_does_not_end_the_reading(redis: AsyncRedis) -> None:
    board = LoadBoard(redis, POOL)
    reading = asyncio.create_task(board.run())
    for garbage in ("not JSON", "[]", "7", '{"replica_id": "a"}', '{"unknown": 1}'):
        await redis.sadd(f"{{afx:{POOL}}}:replicas", "a")
        await redis.set(f"{{afx:{POOL}}}:load:a", garbage)
        await asyncio.sleep(0.15)
        assert not reading.done()
    await publish(redis, POOL, load("a"))
    await until(board.loads)
    reading.cancel()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> LoadBoard:
    """Read a moment ago: two idle replicas."""
    board = LoadBoard(connect("redis://127.0.0.1:1/0"), POOL, clock)
    board.update({"a": load("a"), "b": load("b")})
    return board


def test_placements_count_until_a_snapshot_can_show_them(board: LoadBoard, clock: Clock) -> None:
    board.placed("a", 100)
    board.placed("a", 50)
    seen = board.loads()
    assert (seen["a"].waiting, seen["a"].queued_prefill_tokens) == (2, 150)
    assert seen["b"] == load("b")
    clock.now += SNAPSHOT_LAG_S + 0.001
    assert board.loads()["a"] == load("a")


def test_a_placement_on_a_replica_that_left_is_no_replica(board: LoadBoard) -> None:
    board.placed("dead", 100)
    assert set(board.loads()) == {"a", "b"}


def test_snapshots_that_are_too_old_are_none(board: LoadBoard, clock: Clock) -> None:
    clock.now += LOAD_TTL_S
    assert board.loads()
    clock.now += 0.001
    assert board.loads() == {}


def test_a_board_that_was_never_read_is_empty() -> None:
    assert LoadBoard(connect("redis://127.0.0.1:1/0"), POOL).loads() == {}
