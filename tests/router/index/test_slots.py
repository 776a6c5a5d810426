"""Slots and the scripts that write under them, on one server and on Redis Cluster."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from router.index import slots
from router.index.slots import (
    claim,
    free,
    release,
    renew,
    retire,
    withdraw,
    write_bits,
)
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from tests.router.index_redis import POOL, TOPOLOGIES, bits, control, holders, live, names, registry
from tests.router.redis_process import RedisProcess

A, B = b"a" * 16, b"\xff\x00" * 8


@pytest.fixture(scope="module", params=TOPOLOGIES)
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


pytestmark = pytest.mark.usefixtures("redis_timeout")


def snapshot(incarnation: str) -> str:
    return json.dumps({"incarnation": incarnation})


async def test_concurrent_claims_get_the_lowest_numbers_one_each(redis: AsyncRedis) -> None:
    claimed = await asyncio.gather(*(claim(redis, POOL, f"i{n}") for n in range(40)))
    assert sorted(claimed) == list(range(40))


async def test_a_repeated_claim_returns_the_same_slot(redis: AsyncRedis) -> None:
    await claim(redis, POOL, "first")
    assert await claim(redis, POOL, "again") == await claim(redis, POOL, "again") == 1


async def test_a_preferred_slot_is_assigned_only_if_it_is_free(redis: AsyncRedis) -> None:
    assert await claim(redis, POOL, "first", wanted=7) == 7
    assert await claim(redis, POOL, "second", wanted=7) == 0


async def test_released_slots_are_assigned_again_lowest_first(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        await claim(redis, POOL, f"i{n}")
    await release(redis, POOL, 2, "i2")
    await release(redis, POOL, 1, "i1")
    assert await registry(redis, POOL) == {0: "i0", 3: "i3"}
    assert await claim(redis, POOL, "too early") == 4
    monkeypatch.setattr(slots, "COOLING_S", -1)
    assert await claim(redis, POOL, "x") == 1
    assert await claim(redis, POOL, "y") == 2


async def test_a_lease_with_its_registry_entry_is_live(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await claim(redis, POOL, "own")
    assert await live(redis, POOL) == {}
    assert await renew(redis, POOL, slot, "own", snapshot("own"))
    assert await live(redis, POOL) == {slot: snapshot("own")}
    with control(server) as client:
        assert 1000 < client.pttl(slots.lease_key(POOL, slot)) <= 2000


@pytest.mark.parametrize("value", [snapshot("another"), "{}", "[]", "no json", ""])
async def test_a_lease_that_is_not_the_registered_incarnations_is_not_live(
    redis: AsyncRedis, value: str
) -> None:
    slot = await claim(redis, POOL, "own")
    assert await renew(redis, POOL, slot, "own", value)
    assert await live(redis, POOL) == {}


async def test_bits_are_set_and_cleared_for_one_slot_only(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    one, other = await claim(redis, POOL, "one"), await claim(redis, POOL, "other")
    assert await write_bits(redis, POOL, one, "one", [A, B], [])
    assert await write_bits(redis, POOL, other, "other", [B], [])
    assert bits(server) == {A: {one}, B: {one, other}}
    assert await write_bits(redis, POOL, one, "one", [], [A, B])
    assert bits(server) == {B: {other}}


async def test_a_bitmap_without_bits_is_deleted(redis: AsyncRedis, server: RedisProcess) -> None:
    slot = await claim(redis, POOL, "own")
    before = names(server)
    await write_bits(redis, POOL, slot, "own", [A], [])
    await write_bits(redis, POOL, slot, "own", [], [A, B])
    assert names(server) == before


async def test_a_bitmap_expires_unless_it_is_set_again(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await claim(redis, POOL, "own")
    name = slots.segment_prefix(POOL) + A
    await write_bits(redis, POOL, slot, "own", [A], [])
    with control(server) as client:
        assert 3500 < client.ttl(name) <= 3600
        client.expire(name, 10)
        await write_bits(redis, POOL, slot, "own", [A], [])
        assert 3500 < client.ttl(name) <= 3600


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1500])
async def test_any_number_of_keys_is_written(
    redis: AsyncRedis, server: RedisProcess, count: int
) -> None:
    slot = await claim(redis, POOL, "own")
    first = [b"%016d" % n for n in range(count)]
    then = [b"%016d" % (10_000 + n) for n in range(count)]
    assert await write_bits(redis, POOL, slot, "own", first, [], 1)
    batches = slots.batch_count(first, [])
    assert batches == {0: 0, 1: 1, 128: 1, 129: 2, 1500: 12}[count]
    assert await write_bits(redis, POOL, slot, "own", then, first, batches + 1)
    assert holders(server, slot) == set(then)


async def test_no_batch_has_enough_keys_to_delay_a_lookup(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await claim(redis, POOL, "own")
    cleared = [b"%016d" % n for n in range(100)]
    added = [b"%016d" % (10_000 + n) for n in range(300)]
    with control(server) as client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
        assert await write_bits(redis, POOL, slot, "own", added, cleared, 1)
        client.echo("written")
        sizes = []
        for command in iter(lambda: monitor.next_command()["command"], "ECHO written"):
            name, *arguments = command.split(" ")
            # the script's source has blanks; the number of keys follows it, before the first key
            if name == "EVAL":
                before, _, _ = " ".join(arguments).partition(" " + slots.slots_key(POOL))
                sizes.append(int(before.rsplit(" ", 1)[-1]) - 2)
    assert sizes == [128, 128, 128, 16]
    assert max(sizes) <= slots.BATCH_KEYS


async def flush(redis: AsyncRedis, server: RedisProcess, slot: int) -> None:
    with control(server) as client:
        client.flushall()


async def retired(redis: AsyncRedis, server: RedisProcess, slot: int) -> None:
    await withdraw(redis, POOL, slot, "own")
    assert await retire(redis, POOL, slot, "own", "sweeper")


async def swept_and_claimed(redis: AsyncRedis, server: RedisProcess, slot: int) -> None:
    await retired(redis, server, slot)
    assert await free(redis, POOL, slot, "sweeper")
    assert await claim(redis, POOL, "successor") == slot


@pytest.mark.parametrize("event", [flush, retired, swept_and_claimed])
async def test_a_fenced_writer_changes_nothing(
    redis: AsyncRedis,
    server: RedisProcess,
    event: Callable[[AsyncRedis, RedisProcess, int], Awaitable[None]],
) -> None:
    slot = await claim(redis, POOL, "own")
    await renew(redis, POOL, slot, "own", snapshot("own"))
    await event(redis, server, slot)
    before, taken = names(server), await registry(redis, POOL)
    assert not await renew(redis, POOL, slot, "own", snapshot("own"))
    assert not await write_bits(redis, POOL, slot, "own", [A], [])
    assert not await write_bits(redis, POOL, slot, "own", [A], [], 1)
    await withdraw(redis, POOL, slot, "own")
    await release(redis, POOL, slot, "own")
    assert names(server) == before
    assert await registry(redis, POOL) == taken


async def test_a_batch_that_arrives_twice_is_applied_once(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await claim(redis, POOL, "own")
    assert await write_bits(redis, POOL, slot, "own", [A], [], 1)
    assert await write_bits(redis, POOL, slot, "own", [B], [A], 2)
    assert await write_bits(redis, POOL, slot, "own", [A], [], 1)
    assert holders(server, slot) == {B}


async def test_a_writer_is_fenced_if_redis_lost_one_of_its_batches(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await claim(redis, POOL, "own")
    await write_bits(redis, POOL, slot, "own", [A], [], 1)
    with control(server) as client:  # as a failover or an old snapshot would
        client.hset(slots.batches_key(POOL), str(slot), "0")
    assert not await write_bits(redis, POOL, slot, "own", [], [A], 2)
    assert not await renew(redis, POOL, slot, "own", snapshot("own"), written=1)
    await release(redis, POOL, slot, "own", written=1)
    assert await registry(redis, POOL) == {slot: "own"}


async def test_a_slot_with_a_lease_is_not_retired(redis: AsyncRedis) -> None:
    slot = await claim(redis, POOL, "own")
    await renew(redis, POOL, slot, "own", snapshot("own"))
    assert not await retire(redis, POOL, slot, "own", "sweeper")
    await withdraw(redis, POOL, slot, "own")
    assert await live(redis, POOL) == {}
    assert not await retire(redis, POOL, slot, "predecessor", "sweeper")
    assert await retire(redis, POOL, slot, "own", "sweeper")
    assert await registry(redis, POOL) == {slot: "sweeping:sweeper"}


async def test_a_slot_that_another_sweeper_took_over_is_not_freed(redis: AsyncRedis) -> None:
    slot = await claim(redis, POOL, "own")
    await retire(redis, POOL, slot, "own", "first")
    await retire(redis, POOL, slot, "sweeping:first", "second")
    assert not await free(redis, POOL, slot, "first")
    assert not await write_bits(redis, POOL, slot, "sweeping:first", [], [A])
    assert await free(redis, POOL, slot, "second")
    assert await registry(redis, POOL) == {}


async def test_scripts_are_loaded_again_after_redis_lost_them(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    with control(server) as client:
        client.script_flush()
        slot = await claim(redis, POOL, "own")
        client.script_flush()
        assert await renew(redis, POOL, slot, "own", snapshot("own"))
        client.script_flush()
        many = [b"%016d" % n for n in range(2000)]
        assert await write_bits(redis, POOL, slot, "own", many, [])
        client.script_flush()
        await withdraw(redis, POOL, slot, "own")
        client.script_flush()
        await release(redis, POOL, slot, "own")
    assert len(holders(server, slot)) == 2000
    assert await registry(redis, POOL) == {}


async def test_no_call_waits_longer_than_its_timeout(
    redis: AsyncRedis, server: RedisProcess, redis_timeout: Callable[[float], None]
) -> None:
    slot = await claim(redis, POOL, "own")
    redis_timeout(1.0)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        async with asyncio.timeout(3 * slots.REDIS_TIMEOUT_S):
            failures = await asyncio.gather(
                claim(redis, POOL, "other"),
                renew(redis, POOL, slot, "own", ""),
                write_bits(redis, POOL, slot, "own", [A], []),
                withdraw(redis, POOL, slot, "own"),
                release(redis, POOL, slot, "own"),
                retire(redis, POOL, slot, "own", "sweeper"),
                free(redis, POOL, slot, "sweeper"),
                live(redis, POOL),
                return_exceptions=True,
            )
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert all(isinstance(failure, REDIS_FAILURES) for failure in failures)
