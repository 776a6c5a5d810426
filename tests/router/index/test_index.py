"""What a gateway reads from the index, and what it does while Redis misbehaves.

test_index_budget.py tests how long a lookup takes at most.
"""

import asyncio
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from router.index.depth_search import CLOSER_READ, FIRST_READ
from router.index.index import Depths, PrefixIndex
from router.index.slots import segment_prefix
from router.redis.redis_client import AsyncRedis, connect
from tests.ports import free_ports
from tests.router.index_lookups import (
    BUDGET_S,
    PATIENT_S,
    POOL,
    PREFIX,
    keys_of,
    lookup_with_retries,
    running_index,
    write_depths,
)
from tests.router.index_redis import server_of
from tests.router.redis_process import RedisProcess, running
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient_connections")


@asynccontextmanager
async def index_at(port: int, budget_s: float = PATIENT_S) -> AsyncIterator[PrefixIndex]:
    redis = connect(f"redis://127.0.0.1:{port}/0", decode=False)
    index = PrefixIndex(redis, POOL, budget_s)
    try:
        yield index
    finally:
        await index.aclose()
        await redis.aclose()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with server_of("redis", tmp_path) as server:
        yield server


@pytest.fixture
async def index(server: RedisProcess) -> AsyncIterator[PrefixIndex]:
    async with index_at(server.port) as index:
        yield index


async def test_each_slot_has_the_depth_that_its_publisher_wrote(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    for slot, depth in {0: 3, 1: 1, 63: 4, 640: 2}.items():
        for key in keys_of(depth):
            await redis.setbit(PREFIX.decode() + key.decode(), slot, 1)
    assert await index.lookup(keys_of(5)) == {0: 3, 1: 1, 63: 4, 640: 2}


async def test_another_pools_bits_are_not_read(redis: AsyncRedis, index: PrefixIndex) -> None:
    await redis.set(segment_prefix("fleet/other") + keys_of(1)[0], b"\xff")
    assert await index.lookup(keys_of(1)) == {}


@pytest.mark.parametrize("segments", [1, 32, 33, 256, 1024])
async def test_an_unknown_prompt_takes_one_small_read(
    redis: AsyncRedis, index: PrefixIndex, segments: int
) -> None:
    assert await index.lookup(keys_of(segments)) == {}
    assert await reads(redis) == 1
    assert await keys_read(redis) <= FIRST_READ


async def test_a_long_prompt_cached_by_many_replicas_takes_few_reads(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    depths = dict.fromkeys(range(64), 100) | {7: 1020, 8: 513, 9: 514}
    await write_depths(redis, depths, 1024)
    await redis.execute_command("CONFIG", "RESETSTAT")
    assert await index.lookup(keys_of(1024)) == depths
    assert await reads(redis) == 2
    assert await keys_read(redis) <= FIRST_READ + CLOSER_READ


async def test_a_lookup_without_segments_reads_nothing(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    assert await index.lookup([]) == {}
    assert index.lookups == 0


async def reads(redis: AsyncRedis) -> int:
    stats: dict[str, Any] = await redis.info("commandstats")
    return int(stats["cmdstat_mget"]["calls"])


async def keys_read(redis: AsyncRedis) -> int:
    stats: dict[str, int] = await redis.info("stats")
    return stats["keyspace_hits"] + stats["keyspace_misses"]


@settings(max_examples=settings().max_examples // 3)
@given(
    depths=st.dictionaries(st.integers(0, 999), st.integers(1, 1024), max_size=80),
    segments=st.integers(1, 1024),
)
def test_a_lookup_equals_reading_everything(
    everything: RedisProcess, depths: dict[int, int], segments: int
) -> None:
    depths = {slot: min(depth, segments) for slot, depth in depths.items()}

    async def lookup() -> Depths | None:
        redis = connect(f"redis://127.0.0.1:{everything.port}/0")
        await write_depths(redis, depths, segments)
        await redis.aclose()
        async with index_at(everything.port) as index:
            return await index.lookup(keys_of(segments))

    assert asyncio.run(lookup()) == depths


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with server_of("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


async def test_concurrent_lookups_never_get_each_others_replies(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    depths = {slot: 5 * slot + 1 for slot in range(60)}
    await write_depths(redis, depths, 300)

    async def truth(segments: int) -> bool:
        found = await index.lookup(keys_of(segments))
        return found == {slot: min(depth, segments) for slot, depth in depths.items()}

    tasks = [asyncio.create_task(truth(1 + n % 300)) for n in range(300)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(answer is True for n, answer in enumerate(answers) if n % 3)
    assert await truth(300)


async def test_a_key_of_another_type_counts_as_missing(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    await write_depths(redis, {4: 3}, 3)
    await redis.delete(PREFIX + keys_of(2)[1])
    await redis.hset((PREFIX + keys_of(2)[1]).decode(), "field", "value")
    assert await index.lookup(keys_of(3)) == {4: 3}


async def test_an_error_reply_is_no_signal_and_the_next_lookup_goes_on(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    await write_depths(redis, {4: 1}, 1)
    assert await index.lookup(keys_of(1)) == {4: 1}
    await redis.execute_command("ACL", "SETUSER", "default", "-mget")
    assert await index.lookup(keys_of(1)) is None
    await redis.execute_command("ACL", "SETUSER", "default", "+mget")
    assert await index.lookup(keys_of(1)) == {4: 1}
    assert (index.lookups, index.failures, index.skipped) == (3, 1, 0)
    assert len(index.recent_seconds) == 2


async def test_after_an_error_reply_the_next_lookup_opens_a_new_connection(
    redis: AsyncRedis, index: PrefixIndex
) -> None:
    """Another server may have the keys since then."""
    assert await index.lookup(keys_of(1)) == {}
    before = await connections_so_far(redis)
    await redis.execute_command("ACL", "SETUSER", "default", "-mget")
    assert await index.lookup(keys_of(1)) is None
    await redis.execute_command("ACL", "SETUSER", "default", "+mget")
    assert [await index.lookup(keys_of(1)) for _ in range(3)] == [{}] * 3
    assert await connections_so_far(redis) == before + 1


async def connections_so_far(redis: AsyncRedis) -> int:
    stats: dict[str, int] = await redis.info("stats")
    return stats["total_connections_received"]


async def test_a_cancelled_lookup_is_no_failure(index: PrefixIndex, server: RedisProcess) -> None:
    assert await index.lookup(keys_of(1)) == {}
    server.process.send_signal(signal.SIGSTOP)
    lookup = asyncio.create_task(index.lookup(keys_of(1)))
    await asyncio.sleep(0)
    lookup.cancel()
    await asyncio.wait([lookup])
    server.process.send_signal(signal.SIGCONT)
    assert lookup.cancelled()
    assert index.failures == 0


async def frozen(server: RedisProcess, redis: AsyncRedis) -> Callable[[], Awaitable[None]]:
    async def thaw() -> None:
        server.process.send_signal(signal.SIGCONT)

    server.process.send_signal(signal.SIGSTOP)
    return thaw


async def slow(server: RedisProcess, redis: AsyncRedis) -> Callable[[], Awaitable[None]]:
    async def nothing() -> None:
        pass  # it ends by itself

    await redis.execute_command("CLIENT", "PAUSE", "1000")
    return nothing


async def forbidden(server: RedisProcess, redis: AsyncRedis) -> Callable[[], Awaitable[None]]:
    async def allow() -> None:
        await redis.execute_command("ACL", "SETUSER", "default", "+mget")

    await redis.execute_command("ACL", "SETUSER", "default", "-mget")
    return allow


@pytest.mark.parametrize("trouble", [frozen, slow, forbidden])
async def test_lookups_end_while_redis_fails_and_are_answered_afterward(
    trouble: Callable[[RedisProcess, AsyncRedis], Awaitable[Callable[[], Awaitable[None]]]],
    redis: AsyncRedis,
    server: RedisProcess,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.index.index")
    await write_depths(redis, {4: 20}, 40)
    async with index_at(server.port, BUDGET_S) as index, running_index(index):
        assert await lookup_with_retries(index, 40) == {4: 20}
        end = await trouble(server, redis)
        for _ in range(10):
            assert await index.lookup(keys_of(40)) is None
        assert index.breaker_open
        assert index.skipped >= 6
        await end()
        await until(lambda: not index.breaker_open)
        assert await lookup_with_retries(index, 40) == {4: 20}
    told = [r.message for r in caplog.records if r.name == "router.index.index"]
    assert len(told) == 2
    assert "placing requests without it" in told[0]
    assert "answers again" in told[1]


async def test_lookups_resume_after_a_killed_redis_restarts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    async with index_at(port, BUDGET_S) as index, running_index(index):
        with running(tmp_path, port, f"port {port}\n"):
            assert await lookup_with_retries(index, 3) == {}
        for _ in range(10):
            assert await index.lookup(keys_of(3)) is None
        assert index.breaker_open
        with running(tmp_path, port, f"port {port}\n"):
            redis = connect(f"redis://127.0.0.1:{port}/0")
            await write_depths(redis, {2: 2}, 3)
            await redis.aclose()
            await until(lambda: not index.breaker_open)
            assert await lookup_with_retries(index, 3) == {2: 2}


async def test_without_a_server_from_the_start_lookups_are_no_signal() -> None:
    (port,) = free_ports(1)
    async with index_at(port, BUDGET_S) as index:
        assert [await index.lookup(keys_of(3)) for _ in range(5)] == [None] * 5
        assert index.breaker_open


async def test_a_burst_at_a_frozen_redis_makes_no_more_than_a_few_connections(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with index_at(server.port, BUDGET_S) as index, running_index(index):
        assert await lookup_with_retries(index, 3) == {}
        before = len(await redis.client_list())
        server.process.send_signal(signal.SIGSTOP)
        for _ in range(5):
            found = await asyncio.gather(*(index.lookup(keys_of(300)) for _ in range(100)))
            assert found == [None] * 100
        assert index.breaker_open
        server.process.send_signal(signal.SIGCONT)
        await until(lambda: not index.breaker_open)
        assert len(await redis.client_list()) <= before + 2


async def test_one_stall_with_many_lookups_does_not_open_the_breaker(
    index: PrefixIndex, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "budget_s", BUDGET_S)
    assert await lookup_with_retries(index, 3) == {}
    server.process.send_signal(signal.SIGSTOP)
    answers = await asyncio.gather(*(index.lookup(keys_of(3)) for _ in range(50)))
    server.process.send_signal(signal.SIGCONT)
    assert answers == [None] * 50
    assert not index.breaker_open


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_reply_that_arrived_while_the_process_was_stalled_counts(
    everything: RedisProcess, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def lookup() -> Depths | None:
        redis = connect(f"redis://127.0.0.1:{everything.port}/0")
        await write_depths(redis, {3: 2}, 2)
        await redis.aclose()
        async with index_at(everything.port, BUDGET_S) as index:
            assert await lookup_with_retries(index, 2) == {3: 2}
            lookup = asyncio.create_task(index.lookup(keys_of(2)))
            await asyncio.sleep(0)
            time.sleep(4 * BUDGET_S)  # noqa: ASYNC251  # as a long prompt's rendering would
            return await lookup

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(lookup()) == {3: 2}


async def test_a_lookup_does_not_close_the_breaker(server: RedisProcess) -> None:
    async with index_at(server.port, BUDGET_S) as index:
        server.process.send_signal(signal.SIGSTOP)
        await asyncio.gather(index.lookup(keys_of(3)))
        for _ in range(5):
            await index.lookup(keys_of(3))
        server.process.send_signal(signal.SIGCONT)
        assert [await index.lookup(keys_of(3)) for _ in range(20)] == [None] * 20
        assert index.breaker_open


async def test_a_flushed_index_is_empty(redis: AsyncRedis, index: PrefixIndex) -> None:
    await write_depths(redis, {4: 40}, 40)
    assert await index.lookup(keys_of(40)) == {4: 40}
    await redis.flushall()
    assert await index.lookup(keys_of(40)) == {}


async def test_a_closed_index_has_no_open_connection(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    before = len(await redis.client_list())
    async with index_at(server.port) as index:
        await index.lookup(keys_of(1))
        assert len(await redis.client_list()) == before + 1
    async with asyncio.timeout(60):
        while len(await redis.client_list()) > before:  # noqa: ASYNC110  # each look is a command
            await asyncio.sleep(0.01)


async def test_a_lookup_under_way_when_the_index_is_closed_is_no_signal(
    server: RedisProcess,
) -> None:
    async with index_at(server.port) as index:
        server.process.send_signal(signal.SIGSTOP)
        lookups = [asyncio.create_task(index.lookup(keys_of(3))) for _ in range(3)]
        await asyncio.sleep(0.05)
        await index.aclose()
        assert await asyncio.gather(*lookups) == [None] * 3
        server.process.send_signal(signal.SIGCONT)
