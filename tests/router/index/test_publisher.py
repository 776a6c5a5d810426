"""A replica's publisher keeps the index as the engine's prefix cache is."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.index import slots
from router.index.kv_events import KvEvent
from router.index.publisher import Refresh
from router.redis.redis_client import AsyncRedis
from tests.router import index_engine
from tests.router.index_engine import Replica, all_cleared, removed, stored
from tests.router.index_redis import (
    PATIENCE_S,
    POOL,
    TOPOLOGIES,
    bits,
    client_of,
    control,
    holders,
    live,
    names,
    registry,
    server_of,
)
from tests.router.redis_process import RedisProcess
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("redis_timeout")
# One that leaves has all the time that it needs.
replica_on = partial(index_engine.replica_on, stop_s=PATIENCE_S)


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_cached_blocks_are_in_the_index_until_they_are_evicted(
    topology: str, tmp_path: Path
) -> None:
    with server_of(topology, tmp_path) as server:
        async with client_of(server, topology) as redis, replica_on(redis) as replica:
            replica.feed.put(stored(1), stored(2))
            await replica.until_exact(server, 4)
            replica.feed.put(removed(1), stored(3, segments=3))
            await replica.until_exact(server, 5)
            replica.feed.put(all_cleared())
            await replica.until_exact(server, 0)


async def test_the_lease_of_a_publisher_reports_whether_it_is_synced(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        assert list(await live(redis, POOL)) == [replica.slot]
        await until(lambda: replica.leases[-1].synced)
        assert not replica.leases[0].synced


async def test_two_replicas_share_bitmaps_and_not_bits(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as one, replica_on(redis, [stored(1)]) as other:
        await one.until_exact(server, 2)
        await other.until_exact(server, 2)
        assert {one.slot, other.slot} == {0, 1}
        one.feed.put(removed(1))
        await one.until_exact(server, 0)
        await other.until_exact(server, 2)


async def test_after_lost_events_earlier_entries_are_discarded(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(n) for n in range(1000)]) as replica:
        await replica.until_exact(server, 2000)
        before = replica.leases[-1]
        replica.feed.put(stored(1), stored(5000), lost=True)
        await replica.until_exact(server, 4)
        assert replica.incarnation != before.incarnation
        assert replica.losses == 1
        await until(lambda: not holders(server, before.slot))
        with control(server) as client:
            entry = slots.slots_key(POOL), str(before.slot)
            await until(lambda: str(client.hget(*entry)).startswith(f"b'{slots.FREED}"))
        await replica.until_exact(server, 4)


async def test_blocks_that_are_reported_too_often_leave_no_stale_bits(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    told = stored(1)
    async with replica_on(redis, [told], max_copies=4) as replica:
        await replica.until_exact(server, 2)
        replica.feed.put(told)
        await replica.until_exact(server, 0)
        assert replica.losses == 1
        replica.feed.put(told, told, stored(2))
        await replica.until_exact(server, 4)
        replica.feed.put(removed(1))
        await replica.until_exact(server, 2)
        assert replica.losses == 1


async def test_the_index_removes_a_cache_that_was_reset(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.publisher.cleared()
        assert not replica.publisher.synced
        await replica.until_exact(server, 0)
        assert bits(server) == {}
        replica.feed.put(stored(2))
        await replica.until_exact(server, 2)


async def test_events_that_cannot_be_followed_any_more_empty_the_index_and_keep_the_lease(
    redis: AsyncRedis, server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.feed.fail(RuntimeError("the stream broke"))
        await replica.until_exact(server, 0)
        assert "the stream broke" in caplog.text
        assert replica.losses == 1
        beats = len(replica.leases)
        await until(lambda: len(replica.leases) > beats + 2)
        assert list(await live(redis, POOL)) == [replica.slot]


async def test_events_are_followed_again_after_an_unexpected_exception(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.feed.fail(RuntimeError("the stream broke"))
        await replica.until_exact(server, 0)
        replica.feed.put(stored(2))
        await replica.until_exact(server, 2)
        assert replica.publisher.ended == []


async def test_stopping_leaves_no_bit_and_no_lease(redis: AsyncRedis, server: RedisProcess) -> None:
    async with replica_on(redis, [stored(n) for n in range(1000)]) as replica:
        await replica.until_exact(server, 2000)
        replica.feed.put(removed(1), stored(2000))
    assert names(server) == {slots.slots_key(POOL)}
    assert await registry(redis, POOL) == {}
    await replica.publisher.stop()


async def test_stopping_clears_what_was_evicted_a_moment_ago(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.cached.apply([removed(1)])
    assert bits(server) == {}


async def test_stopping_clears_what_was_dropped_a_moment_ago(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.publisher.cleared()
    assert bits(server) == {}


@pytest.mark.parametrize("turns", range(16))
async def test_stopping_at_any_moment_of_a_heartbeat_leaves_nothing(
    redis: AsyncRedis, server: RedisProcess, turns: int
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        beats = len(replica.leases)
        replica.feed.put(stored(2))
        while len(replica.leases) == beats:  # noqa: ASYNC110  # to be there in the same turn
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
    assert names(server) == {slots.slots_key(POOL)}


async def test_bits_are_set_again_before_they_expire(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    often = Refresh(period_s=0.05, pause_s=0.01)
    async with replica_on(redis, [stored(1), stored(2)], refresh=often) as replica:
        await replica.until_exact(server, 4)
        one, other = (slots.segment_prefix(POOL) + key for key in replica.cached.keys()[:2])
        with control(server) as client:
            client.delete(one)
            client.expire(other, 100)
            await until(lambda: client.ttl(one) > 3500 and client.ttl(other) > 3500)
        await replica.until_exact(server, 4)


async def test_bits_that_only_the_refresh_has_written_are_cleared_too(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    often = Refresh(period_s=0.01, pause_s=0.01)
    async with replica_on(redis, [stored(1)], refresh=often) as replica:
        await replica.until_exact(server, 2)
        replica.cached.apply([stored(2)])  # which no event has announced to the writer
        await until(lambda: len(bits(server)) == 4)
        replica.publisher.cleared()
        await until(lambda: not bits(server))


async def test_the_key_space_does_not_grow_with_replicas_that_come_and_go(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "COOLING_S", -1)
    for n in range(12):
        async with replica_on(redis, [stored(n)]) as replica:
            await replica.until_exact(server, 2)
            assert replica.slot == 0
    with control(server) as client:
        assert client.hlen(slots.slots_key(POOL)) == 1
    assert names(server) == {slots.slots_key(POOL)}


async def test_a_load_that_cannot_be_measured_is_measured_again_later(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        replica.is_measurable = False
        await until(lambda: not replica.publisher.synced)
        replica.is_measurable = True
        await replica.until_exact(server, 2)


prompts = st.integers(0, 5)
happenings = st.lists(
    st.one_of(
        st.lists(st.one_of(st.builds(stored, prompts), st.builds(removed, prompts)), max_size=6),
        st.sampled_from(["flush", "lost", "cleared", "pause", "rollback"]),
    ),
    max_size=12,
)


@settings(max_examples=settings().max_examples // 2)
@given(happenings)
def test_the_index_converges_to_the_engines_cache_after_any_sequence_of_events(
    shared: RedisProcess, happening: list[list[KvEvent] | str]
) -> None:
    async def scenario() -> None:
        often = Refresh(period_s=0.001, keys=2, pause_s=0.001)
        async with client_of(shared) as redis, replica_on(redis, refresh=often) as replica:
            for what in happening:
                await happens(what, replica)
            replica.feed.put(stored(99))
            await until(replica.feed.is_read)
            await replica.until_exact(shared, len(replica.cached.keys()))
            await replica.publisher.stop()
            taken = await registry(redis, POOL)
            assert {slot for held_by in bits(shared).values() for slot in held_by} <= taken.keys()

    async def happens(what: list[KvEvent] | str, replica: Replica) -> None:
        if isinstance(what, list):
            replica.feed.put(*what)
        elif what == "lost":
            replica.feed.put(lost=True)
        elif what == "cleared":
            replica.publisher.cleared()
        elif what == "pause":
            await asyncio.sleep(0.02)
        else:
            with control(shared) as client:
                if what == "flush":
                    client.flushall()
                elif replica.leases:
                    client.hset(slots.batches_key(POOL), str(replica.slot), "0")

    with control(shared) as client:
        client.flushall()
        asyncio.run(scenario())
