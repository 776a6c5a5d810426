"""The reading of a load board: what replicas publish, and which of them take traffic."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cli.local import redis_server
from cli.local.redis_server import RedisServer
from router.board import active
from router.board.active import Active, ActiveWriter
from router.board.load import LoadBoard, ReplicaLoad
from router.board.load_reader import LoadReader
from router.index import slots
from router.redis.redis_client import AsyncRedis, connect
from tests.router.loads import load, loads_ready_at
from tests.waiting import cancelled, until

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


def reader_of(redis: AsyncRedis) -> LoadReader:
    """With an empty board."""
    return LoadReader(redis, POOL, LoadBoard(time.monotonic))


@pytest.fixture
async def reading(redis: AsyncRedis) -> AsyncIterator[LoadBoard]:
    reader = reader_of(redis)
    task = asyncio.create_task(reader.run())
    yield reader.board
    assert not task.done()
    task.cancel()


def test_a_snapshot_of_another_release_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = reader_of(connect("redis://127.0.0.1:1/0"))

    def told_of(snapshots: dict[int, str]) -> int:
        caplog.clear()
        assert reader._readable(snapshots) == []
        return len(caplog.records)

    assert [told_of({3: "{}"}) for _ in range(3)] == [1, 0, 0]
    assert told_of({3: "{}", 4: "{}"}) == 1
    assert told_of({3: "[]"}) == 1
    assert told_of({}) == 0
    assert told_of({3: "[]"}) == 1


async def publish(redis: AsyncRedis, published: ReplicaLoad) -> None:
    await slots.claim(redis, POOL, published.incarnation, published.slot)
    lease = (published.slot, published.incarnation)
    assert await slots.renew(redis, POOL, *lease, published.to_json())


async def test_published_loads_are_read_unchanged(redis: AsyncRedis, reading: LoadBoard) -> None:
    one = load("a", slot=0, incarnation="one", kv_use=0.123456789, arrived=("t1", "t2"))
    other = load("b:[::1]", slot=1, incarnation="other", url="http://[::1]:1")
    await publish(redis, one)
    await publish(redis, other)
    await until(lambda: reading.loads() == {"a": one, "b:[::1]": other})


async def test_a_replica_whose_slot_went_to_another_incarnation_is_not_on_the_board(
    redis: AsyncRedis, reading: LoadBoard
) -> None:
    await publish(redis, load("old", slot=0, incarnation="old"))
    await redis.hset(slots.slots_key(POOL), "0", "new")
    await publish(redis, load("b", slot=1, incarnation="b"))
    await until(lambda: list(reading.loads()) == ["b"])


async def test_a_withdrawn_replica_leaves_the_board(redis: AsyncRedis, reading: LoadBoard) -> None:
    await publish(redis, load("a", slot=0, incarnation="a"))
    await until(lambda: bool(reading.loads()))
    await slots.withdraw(redis, POOL, 0, "a")
    await until(lambda: not reading.loads())


@pytest.mark.parametrize("snapshot", ['{"incarnation": "x"}', '{"incarnation": "x", "new": 1}'])
async def test_a_snapshot_of_another_release_hides_only_its_own_replica(
    redis: AsyncRedis, reading: LoadBoard, snapshot: str
) -> None:
    await slots.claim(redis, POOL, "x", 0)
    assert await slots.renew(redis, POOL, 0, "x", snapshot)
    await publish(redis, load("a", slot=1, incarnation="a"))
    await until(lambda: list(reading.loads()) == ["a"])


async def test_the_number_of_active_replicas_is_read_with_the_snapshots(
    redis: AsyncRedis, reading: LoadBoard
) -> None:
    for replica in loads_ready_at(100.0, 200.0):
        await publish(redis, replica)
    await until(lambda: len(reading.loads()) == 2)
    await ActiveWriter(redis, POOL).publish(1, None)
    await until(lambda: list(reading.loads()) == ["r0"])
    assert reading.active_seen == Active(1)
    await redis.set(active.active_key(POOL), "unreadable")
    await until(lambda: len(reading.loads()) == 2)


async def test_a_promotion_takes_effect_at_once_and_once(redis: AsyncRedis) -> None:
    readers = [reader_of(redis) for _ in range(4)]
    await ActiveWriter(redis, POOL).publish(1, None)
    for reader in readers:
        reader.board.update(loads_ready_at(100.0, 200.0, 300.0), Active(1))
    assert await asyncio.gather(*(reader.promote() for reader in readers)) == [True] * 4
    assert [list(reader.board.loads()) for reader in readers] == [["r0", "r1"]] * 4
    assert await active.read(redis, POOL) == Active(2, 1)


async def test_a_read_that_started_before_a_promotion_does_not_undo_it(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = reader_of(redis)
    board = reader.board
    await ActiveWriter(redis, POOL).publish(1, None)
    board.update(loads_ready_at(100.0, 200.0), Active(1))
    read, began, may_end = slots.read_leases, asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        found = await read(*arguments)
        began.set()
        await may_end.wait()
        return found

    for replica in loads_ready_at(100.0, 200.0):
        await publish(redis, replica)
    monkeypatch.setattr(slots, "read_leases", slow)
    task = asyncio.create_task(reader.run())
    await began.wait()
    assert await reader.promote()
    ended = asyncio.create_task(reader.next_reading())
    await asyncio.sleep(0)
    may_end.set()
    await ended
    assert list(board.loads()) == ["r0", "r1"]
    assert not task.done()
    await cancelled(task)


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_read_takes_one_round_trip_and_includes_new_replicas(
    server: RedisServer, redis: AsyncRedis, protocol: int
) -> None:
    client = connect(f"{server.url}?protocol={protocol}")
    reader = reader_of(client)
    replicas = loads_ready_at(100.0, 200.0, 300.0)
    for number, replica in enumerate(replicas):
        await publish(redis, replica)
        await reader.read()
        assert len(reader.board.loads()) == number + 1
    await redis.config_resetstat()
    await reader.read()
    calls = {name: of["calls"] for name, of in (await redis.info("commandstats")).items()}
    assert calls.pop("cmdstat_config|resetstat", 1) == calls.pop("cmdstat_config", 1) == 1
    assert calls == {"cmdstat_hgetall": 1, "cmdstat_mget": 1}
    assert len(reader.board.loads()) == len(replicas)
    await reader.aclose()
    await client.aclose()


async def test_nothing_is_promoted_where_nothing_is_warm(redis: AsyncRedis) -> None:
    reader = reader_of(redis)
    board = reader.board
    for current in (None, Active(2)):
        board.update(loads_ready_at(100.0, 200.0), current)
        assert not await reader.promote()
    assert await active.read(redis, POOL) is None


async def test_all_replicas_serve_when_the_number_disappears_from_redis(redis: AsyncRedis) -> None:
    reader = reader_of(redis)
    board = reader.board
    board.update(loads_ready_at(100.0, 200.0), Active(1))
    assert await reader.promote()
    assert len(board.loads()) == 2


async def test_a_promotion_without_redis_raises_nothing() -> None:
    reader = reader_of(connect("redis://127.0.0.1:1/0"))
    board = reader.board
    board.update(loads_ready_at(100.0, 200.0), Active(1))
    assert not await reader.promote()
    assert list(board.warm()) == ["r1"]
