"""Redis goes, forgets or stands still: a publisher finds back, never raises, and stops in time."""

import asyncio
import logging
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from router.index import publisher, slots
from router.index.publisher import RENEW_S, Lease
from router.index.slots import segment_prefix
from router.index.sweeper import Sweeper
from router.redis.redis_client import AsyncRedis, connect
from tests.autoscaling.hand_clock import HandClock
from tests.ports import free_ports
from tests.router.index_engine import removed, replica_on, stored
from tests.router.index_redis import POOL, bits, client_of, control, read_slots, registry
from tests.router.redis_process import RedisProcess, running
from tests.waiting import until


async def test_after_a_flush_everything_is_written_under_a_new_incarnation(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(n) for n in range(1000)]) as replica:
        await replica.until_exact(server, 2000)
        before = replica.leases[-1]
        with control(server) as client:
            client.flushall()
        await until(lambda: replica.incarnation != before.incarnation)
        assert not next(x for x in replica.leases if x.incarnation == replica.incarnation).synced
        await replica.until_exact(server, 2000)


async def test_after_a_flush_a_replica_keeps_its_slot_number(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        async with replica_on(redis, [stored(2)]) as second:
            await second.until_exact(server, 2)
            await replica.publisher.stop()
            before = second.leases[-1]
            with control(server) as client:
                client.flushall()
            await until(lambda: second.incarnation != before.incarnation)
            assert second.slot == before.slot == 1


async def test_after_an_empty_restart_everything_is_written_again(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with ExitStack() as servers:
        server = servers.enter_context(running(tmp_path, port, f"port {port}"))
        async with client_of(server) as redis, replica_on(redis, [stored(1)]) as replica:
            await replica.until_exact(server, 2)
            server.process.kill()
            server.process.wait()
            replica.feed.put(stored(2), removed(1))
            await until(lambda: not replica.publisher.synced)
            server = servers.enter_context(running(tmp_path, port, f"port {port}"))
            replica.feed.put(stored(3))
            await replica.until_exact(server, 4)


async def test_changes_during_a_redis_freeze_are_written_later(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1), stored(2)]) as replica:
        await replica.until_exact(server, 4)
        before = replica.incarnation
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            replica.feed.put(removed(1), stored(3))
            await until(lambda: not replica.publisher.synced)
            # the first write is given up meanwhile, and may yet arrive
            await asyncio.sleep(1.5 * slots.REDIS_TIMEOUT_S)
            replica.feed.put(removed(3), stored(4))
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        await replica.until_exact(server, 4)
        assert replica.incarnation == before
        assert set(bits(server)) == set(replica.cached.keys())


async def test_the_lag_of_a_publisher_is_the_age_of_the_oldest_unwritten_change(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    clock = HandClock()
    async with replica_on(redis, [stored(1)], clock=clock) as replica:
        await replica.until_exact(server, 2)
        clock.now += 100.0
        assert replica.publisher.lag_s == 0.0
        server.process.send_signal(signal.SIGSTOP)
        try:
            replica.feed.put(stored(2))
            await until(lambda: len(replica.cached.keys()) == 4)
            clock.now += 7.0
            assert replica.publisher.lag_s == 7.0
            replica.feed.put(stored(3))
            await until(lambda: len(replica.cached.keys()) == 6)
            clock.now += 2.0
            assert replica.publisher.lag_s == 9.0
            assert not replica.publisher.synced
        finally:
            server.process.send_signal(signal.SIGCONT)
        await replica.until_exact(server, 6)
        assert replica.publisher.lag_s == 0.0


async def test_after_a_flush_the_lag_starts_with_the_new_incarnation(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    """All that it has is written again, and nothing of it waited before."""
    clock = HandClock()
    async with replica_on(redis, [stored(1)], clock=clock) as replica:
        await replica.until_exact(server, 2)
        clock.now += 100.0
        replica.leases = _FreezingAtTheNext(replica.leases, server)
        with control(server) as client:
            client.flushall()
        try:
            clock.now += RENEW_S  # and so it finds that out
            await until(lambda: replica.leases[-1].incarnation != replica.leases[0].incarnation)
            assert replica.publisher.lag_s == 0.0
            clock.now += 5.0
            assert replica.publisher.lag_s == 5.0
        finally:
            server.process.send_signal(signal.SIGCONT)
        await replica.until_exact(server, 2)
        assert replica.publisher.lag_s == 0.0


class _FreezingAtTheNext(list[Lease]):
    """Stops Redis with the first lease of another incarnation."""

    def __init__(self, leases: list[Lease], server: RedisProcess) -> None:
        super().__init__(leases[-1:])
        self._server = server

    def append(self, lease: Lease) -> None:
        if lease.incarnation != self[-1].incarnation:
            self._server.process.send_signal(signal.SIGSTOP)
        super().append(lease)


async def test_events_after_a_failed_write_are_written_without_further_events(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            replica.feed.put(stored(2))
            await until(lambda: not replica.publisher.synced)
            # while the first write is under way, which is given up and repeated
            replica.feed.put(stored(3))
            await asyncio.sleep(1.5 * slots.REDIS_TIMEOUT_S)
        finally:
            os.kill(server.process.pid, signal.SIGCONT)
        await replica.until_exact(server, 6)


async def test_a_restored_old_snapshot_of_redis_causes_a_new_incarnation(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        before = replica.leases[-1]
        phantom = slots.segment_prefix(POOL) + b"evicted meanwhile"
        with control(server) as client:
            client.setbit(phantom, before.slot, 1)
            client.hset(slots.batches_key(POOL), str(before.slot), "0")
        await until(lambda: replica.incarnation != before.incarnation)
        await replica.until_exact(server, 2)
        # the number stays taken: what is under it is the sweeper's to find
        assert (await registry(redis, POOL))[before.slot] == before.incarnation


async def test_all_bits_are_written_again_after_the_clock_of_redis_is_set_forward(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every bit had expired, and was set again with the next refresh, minutes later."""
    async with replica_on(redis, [stored(1), stored(2)]) as replica:
        await replica.until_exact(server, 4)
        before = replica.incarnation
        with control(server) as client:
            assert client.delete(*(segment_prefix(POOL) + key for key in bits(server))) == 4
        assert bits(server) == {}
        later = slots._RENEW.lua.replace("call('TIME')[1]", "call('TIME')[1] + 3600")
        monkeypatch.setattr(slots, "_RENEW", slots.Script(later))
        await replica.until_exact(server, 4)
        assert replica.incarnation != before


async def test_stopping_before_redis_ever_answered_is_quick(tmp_path: Path) -> None:
    redis = connect("redis://127.0.0.1:1")
    async with replica_on(redis, [stored(1)]) as replica:
        await until(lambda: bool(replica.cached.keys()))
        assert not replica.publisher.synced
    await redis.aclose()


async def test_stopping_while_redis_is_frozen_is_bounded_and_raises_nothing(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(publisher.STOP_S + 0.5):
                await replica.publisher.stop()
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


async def test_an_outage_is_logged_once(
    redis: AsyncRedis, server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with replica_on(redis, [stored(1)]) as replica:
        await replica.until_exact(server, 2)
        with control(server) as client:
            client.config_set("maxclients", 1)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")  # type: ignore[no-untyped-call]
            replica.feed.put(stored(2))
            await until(lambda: len(caplog.records) >= 2)
            await asyncio.sleep(0.5)
            client.config_set("maxclients", 1000)
        await replica.until_exact(server, 4)
    ours = [record for record in caplog.records if record.name == "router.index.publisher"]
    assert sorted(record.message.split(":")[0] for record in ours) == [
        f"failed to publish the load of a replica of {POOL}",
        f"failed to write the index of a replica of {POOL}",
    ]


async def test_a_replica_that_was_swept_while_frozen_gets_a_new_incarnation(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with replica_on(redis, [stored(1), stored(2)]) as replica:
        await replica.until_exact(server, 4)
        before = replica.leases[-1]
        # This event loop, and so the publisher, stands still meanwhile.
        sweeping = threading.Thread(target=asyncio.run, args=(sweep_all(server),))
        sweeping.start()
        sweeping.join()
        assert bits(server) == {}
        replica.feed.put(removed(1))
        await until(lambda: replica.incarnation != before.incarnation)
        await replica.until_exact(server, 2)


async def sweep_all(server: RedisProcess) -> None:
    """As if every lease had lapsed long ago."""
    times = iter([0.0, 10.0])
    async with client_of(server) as redis:
        for slot, incarnation in (await registry(redis, POOL)).items():
            await slots.withdraw(redis, POOL, slot, incarnation)
        look = partial(read_slots, redis, POOL)
        sweeper = Sweeper(redis, POOL, look, clock=lambda: next(times))
        assert [await sweeper.sweep_once(), await sweeper.sweep_once()] == [0, 1]
