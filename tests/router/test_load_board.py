"""The load board: what replicas publish, a gateway reads, and what it has placed since."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from deployments.local import redis_server
from deployments.local.redis_server import RedisServer
from router import slots
from router.load import LAST_KNOWN_S, UNSEEN_S, LoadBoard, LoadReport, ReplicaLoad
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


@pytest.fixture
async def reading(redis: AsyncRedis) -> AsyncIterator[LoadBoard]:
    board = LoadBoard(redis, POOL)
    task = asyncio.create_task(board.run())
    yield board
    assert not task.done()
    task.cancel()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def publish(redis: AsyncRedis, published: ReplicaLoad) -> None:
    await slots.claim(redis, POOL, published.incarnation, published.slot)
    lease = (published.slot, published.incarnation)
    assert await slots.renew(redis, POOL, *lease, published.to_json())


async def test_what_replicas_publish_is_read_as_it_is(
    redis: AsyncRedis, reading: LoadBoard
) -> None:
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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def board(clock: Clock) -> LoadBoard:
    """Read a moment ago: two idle replicas."""
    board = LoadBoard(connect("redis://127.0.0.1:1/0"), POOL, clock)
    board.update([load("a", slot=0), load("b", slot=1)])
    return board


def test_a_placement_counts_until_a_snapshot_names_it(board: LoadBoard) -> None:
    board.placed("t1", 0, 100)
    board.placed("t2", 0, 50)
    seen = board.loads()
    assert (seen["a"].waiting, seen["a"].queued_prefill_tokens) == (2, 150)
    assert seen["b"] == load("b", slot=1)
    board.update([load("a", slot=0, waiting=1, arrived=("t1",)), load("b", slot=1)])
    assert (board.loads()["a"].waiting, board.loads()["a"].queued_prefill_tokens) == (2, 50)


def test_a_placement_that_never_arrives_is_forgotten(board: LoadBoard, clock: Clock) -> None:
    board.placed("t1", 0, 100)
    clock.now += UNSEEN_S + 0.001
    assert board.loads()["a"] == load("a", slot=0)


def test_a_placement_that_failed_is_taken_back(board: LoadBoard) -> None:
    board.placed("t1", 0, 100)
    board.unplaced("t1")
    board.unplaced("t1")
    assert board.loads()["a"] == load("a", slot=0)


def test_what_a_replica_reports_with_an_answer_counts_until_a_newer_snapshot(
    board: LoadBoard,
) -> None:
    stale = load("a", slot=0, waiting=1, queued_prefill_tokens=300, sequence=4)
    board.update([stale, load("b", slot=1)])
    board.reported("a", LoadReport(5, 0, 1, 0))
    seen = board.loads()["a"]
    assert (seen.waiting, seen.running, seen.queued_prefill_tokens) == (0, 1, 0)
    board.update([stale, load("b", slot=1)])  # read again, and still from before the report
    assert board.loads()["a"].waiting == 0
    board.update([load("a", slot=0, waiting=2, sequence=6), load("b", slot=1)])
    assert board.loads()["a"].waiting == 2


def test_a_report_does_not_outlive_its_replicas_incarnation(board: LoadBoard) -> None:
    board.update([load("a", incarnation="old", sequence=9, waiting=5)])
    board.update([load("a", incarnation="new", sequence=1)])
    assert board.loads()["a"].waiting == 0


def test_a_report_of_a_replica_that_left_is_dropped(board: LoadBoard) -> None:
    board.reported("gone", LoadReport(5, 0, 1, 0))
    assert set(board.loads()) == {"a", "b"}


def test_a_placement_on_a_slot_nobody_has_is_no_replica(board: LoadBoard) -> None:
    board.placed("t1", 7, 100)
    assert set(board.loads()) == {"a", "b"}


def test_all_replicas_are_taken_to_prefill_at_the_mean_rate(board: LoadBoard) -> None:
    board.update([load("a", prefill_rate=100.0), load("b", slot=1, prefill_rate=300.0)])
    assert {load.prefill_rate for load in board.loads().values()} == {200.0}


def test_snapshots_that_are_too_old_are_none(board: LoadBoard, clock: Clock) -> None:
    clock.now += slots.LEASE_S
    assert board.loads()
    clock.now += 0.001
    assert board.loads() == {}


def test_an_empty_board_still_says_who_was_there(board: LoadBoard, clock: Clock) -> None:
    board.update([])
    assert board.loads() == {}
    assert set(board.last_known()) == {"a", "b"}
    clock.now += LAST_KNOWN_S + 1
    assert board.last_known() == {}


def test_a_board_that_was_never_read_is_empty() -> None:
    board = LoadBoard(connect("redis://127.0.0.1:1/0"), POOL)
    assert board.loads() == board.last_known() == {}
