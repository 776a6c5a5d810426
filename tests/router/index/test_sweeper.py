"""Dead slots are swept: their bits go, then their numbers are free."""

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index import slots, sweeper
from router.index.slots import claim, renew, write_bits
from router.index.sweeper import Sweeper
from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis, connect
from tests.ports import free_ports
from tests.router.index_redis import (
    PATIENCE_S,
    POOL,
    TOPOLOGIES,
    bits,
    client_of,
    control,
    names,
    read_slots,
    registry,
)
from tests.router.redis_process import RedisProcess, running
from tests.waiting import until

KEYS = [b"%016d" % n for n in range(3000)]


@pytest.fixture(scope="module", params=TOPOLOGIES)
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


pytestmark = pytest.mark.usefixtures("redis_timeout")


class Hand:
    """A sweeper whose clock and whose pauses between pages a test moves."""

    def __init__(self, redis: AsyncRedis, pool: str = POOL, now: float = 0.0) -> None:
        self.now = now
        self.paused = False
        self._go = asyncio.Event()
        look = partial(read_slots, redis, pool)
        self.sweeper = Sweeper(redis, pool, look, clock=lambda: self.now, pause=self._pause)
        self.task: asyncio.Task[int] | None = None

    async def _pause(self) -> None:
        self.paused = True
        await self._go.wait()
        self._go.clear()

    async def step(self) -> int | None:
        """Run to the next pause; the number of freed slots when the sweep ended instead."""
        if self.task is None:
            self.task = asyncio.create_task(self.sweeper.sweep_once())
        elif self.paused:
            self._go.set()
        self.paused = False
        task = self.task
        await until(lambda: self.paused or task.done(), PATIENCE_S)
        if self.paused:
            return None
        self.task = None
        return task.result()

    async def sweep(self) -> int:
        """One whole sweep."""
        while (freed := await self.step()) is None:
            pass
        return freed

    async def sweep_later(self) -> int:
        """A look now, and a sweep when what it saw without a lease is due."""
        await self.sweep()
        self.now += sweeper.UNLEASED_S
        return await self.sweep()

    async def die(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        self.task, self.paused = None, False


async def dead_slot(redis: AsyncRedis, keys: list[bytes], pool: str = POOL) -> int:
    slot = await claim(redis, pool, f"dead {os.urandom(4).hex()}")
    incarnation = (await registry(redis, pool))[slot]
    await write_bits(redis, pool, slot, incarnation, keys, [])
    return slot


async def test_a_slot_is_swept_after_two_lease_periods_without_a_lease(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    await dead_slot(redis, KEYS)
    hand = Hand(redis)
    assert await hand.sweep() == 0
    hand.now = 3.9
    assert await hand.sweep() == 0
    assert len(bits(server)) == len(KEYS)
    hand.now = 4.0
    assert await hand.sweep() == 1
    assert names(server) == set()


async def test_bits_of_live_replicas_stay(redis: AsyncRedis, server: RedisProcess) -> None:
    gone = await dead_slot(redis, KEYS)
    lives = await claim(redis, POOL, "lives")
    await write_bits(redis, POOL, lives, "lives", KEYS[:10], [])
    await renew(redis, POOL, lives, "lives", "{}")
    assert await Hand(redis).sweep_later() == 1
    assert bits(server) == {key: {lives} for key in KEYS[:10]}
    assert await registry(redis, POOL) == {lives: "lives"}
    assert await claim(redis, POOL, "successor") == gone


async def test_several_dead_slots_are_swept_in_one_pass(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    for n in range(3):
        await dead_slot(redis, KEYS[n * 100 : n * 100 + 500])
    assert await Hand(redis).sweep_later() == 3
    assert names(server) == set()


async def test_a_replica_that_renews_its_slot_in_time_is_not_swept(redis: AsyncRedis) -> None:
    slot = await claim(redis, POOL, "late")
    hand = Hand(redis)
    await hand.sweep()
    await renew(redis, POOL, slot, "late", "{}")
    hand.now = 3.0
    assert await hand.sweep() == 0
    await slots.withdraw(redis, POOL, slot, "late")
    hand.now = 5.0
    assert await hand.sweep() == 0
    hand.now = 8.9
    assert await hand.sweep() == 0
    assert await registry(redis, POOL) == {slot: "late"}


async def test_only_its_own_pool_is_swept(redis: AsyncRedis, server: RedisProcess) -> None:
    odd, alike = "p*[a]?\\", "pxxa\\"
    await dead_slot(redis, KEYS[:5], odd)
    await dead_slot(redis, KEYS[:5], alike)
    assert await Hand(redis, odd).sweep_later() == 1
    assert bits(server, odd) == {}
    assert len(bits(server, alike)) == 5


async def test_another_sweeper_continues_once_the_lock_of_a_dead_one_expires(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    slot = await dead_slot(redis, KEYS)
    first, second = Hand(redis), Hand(redis)
    await first.sweep()
    first.now = 4.0
    assert await first.step() is None
    await first.die()
    assert (await registry(redis, POOL))[slot].startswith("sweeping:")
    assert await second.sweep_later() == 0
    with control(server) as client:
        lock = redis_keys.key(POOL, "sweeper")
        assert 25_000 < client.pttl(lock) <= 30_000
        client.delete(lock)
    assert await second.sweep() == 1
    assert names(server) == set()


async def test_one_sweeper_works_at_a_time(redis: AsyncRedis, server: RedisProcess) -> None:
    await dead_slot(redis, KEYS)
    first, second = Hand(redis), Hand(redis)
    for hand in (first, second):
        await hand.sweep()
        hand.now = 4.0
    assert await first.step() is None
    assert await second.sweep() == 0
    assert await first.sweep() == 1
    assert names(server) == set()


async def test_a_sweeper_that_lost_its_lock_stops(redis: AsyncRedis, server: RedisProcess) -> None:
    await dead_slot(redis, KEYS)
    hand = Hand(redis)
    await hand.sweep()
    hand.now = 4.0
    assert await hand.step() is None
    with control(server) as client:
        client.set(redis_keys.key(POOL, "sweeper"), "another")
    assert await hand.sweep() == 0
    assert len(await registry(redis, POOL)) == 1


async def test_a_running_sweeper_sweeps_periodically(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeper, "SWEEP_PERIOD_S", 0.01)
    await dead_slot(redis, KEYS)
    ticks = itertools.count()
    look = partial(read_slots, redis, POOL)
    task = asyncio.create_task(Sweeper(redis, POOL, look, clock=lambda: float(next(ticks))).run())
    await until(lambda: not names(server), PATIENCE_S)
    task.cancel()


@contextmanager
def hanging(server: RedisProcess, redis_timeout: Callable[[float], None]) -> Iterator[None]:
    redis_timeout(0.3)
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        redis_timeout(PATIENCE_S)


async def test_a_failed_read_restarts_the_observation_of_slots(
    redis: AsyncRedis, server: RedisProcess, redis_timeout: Callable[[float], None]
) -> None:
    await dead_slot(redis, KEYS[:1])
    hand = Hand(redis)
    await hand.sweep()
    with hanging(server, redis_timeout):
        assert [await hand.sweep(), await hand.sweep()] == [0, 0]
    hand.now = 4.0
    assert await hand.sweep() == 0
    hand.now = 8.0
    assert await hand.sweep() == 1


async def test_an_outage_during_a_sweep_is_logged_once(
    redis: AsyncRedis,
    server: RedisProcess,
    caplog: pytest.LogCaptureFixture,
    redis_timeout: Callable[[float], None],
) -> None:
    caplog.set_level(logging.WARNING)
    await dead_slot(redis, KEYS)
    hand = Hand(redis)
    await hand.sweep()
    hand.now = 4.0
    assert await hand.step() is None
    with hanging(server, redis_timeout):
        assert [await hand.sweep(), await hand.sweep()] == [0, 0]
    assert len(caplog.records) == 1
    assert await hand.sweep_later() == 1


async def test_without_redis_a_sweep_does_nothing() -> None:
    redis = connect("redis://127.0.0.1:1")
    assert await Sweeper(redis, POOL, partial(read_slots, redis, POOL)).sweep_once() == 0
    await redis.aclose()


async def test_a_slot_stays_taken_when_redis_restarted_during_the_sweep(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with ExitStack() as servers:
        server = servers.enter_context(running(tmp_path, port, f"port {port}"))
        async with client_of(server) as redis:
            await dead_slot(redis, KEYS)
            hand = Hand(redis)
            await hand.sweep()
            hand.now = 4.0
            assert await hand.step() is None
            with control(server) as client:
                client.save()
            server.process.kill()
            server.process.wait()
            server = servers.enter_context(running(tmp_path, port, f"port {port}"))
            assert await hand.sweep() == 0
            assert await hand.sweep_later() == 1
            assert names(server) == set()


@dataclass
class Pool:
    """Writers and two sweepers on one pool, and what each writer's bits ought to be."""

    redis: AsyncRedis
    server: RedisProcess
    hands: list[Hand]
    slot_of: dict[str, int] = field(default_factory=dict)
    held: dict[str, set[bytes]] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)

    async def claim(self) -> None:
        name = f"writer{len(self.slot_of)}"
        self.slot_of[name] = await claim(self.redis, POOL, name)
        self.held[name] = set()
        self.alive.add(name)
        await self.renew()

    async def renew(self) -> None:
        for name in self.alive:
            await renew(self.redis, POOL, self.slot_of[name], name, "{}")

    async def write(self, writer: int, added: set[bytes], cleared: set[bytes]) -> None:
        """By a dead one too: a zombie does not know that it is dead."""
        if not self.slot_of:
            return
        name = f"writer{writer % len(self.slot_of)}"
        slot = self.slot_of[name]
        if await write_bits(self.redis, POOL, slot, name, sorted(added - cleared), sorted(cleared)):
            self.held[name] = (self.held[name] | added) - cleared
        else:
            assert name not in self.alive

    async def die(self, writer: int) -> None:
        name = f"writer{writer}"
        if name in self.alive:
            self.alive.remove(name)
            await slots.withdraw(self.redis, POOL, self.slot_of[name], name)

    async def release(self, writer: int) -> None:
        name = f"writer{writer}"
        if name in self.alive:
            self.alive.remove(name)
            await self.write(writer, set(), set(self.held[name]))
            await slots.release(self.redis, POOL, self.slot_of[name], name)

    async def sweep(self, hand: int, pages: int) -> None:
        for _ in range(pages):
            self.hands[hand].now += 5
            await self.hands[hand].step()

    async def kill_sweeper(self, hand: int) -> None:
        await self.hands[hand].die()
        await self.redis.delete(redis_keys.key(POOL, "sweeper"))

    async def check(self) -> None:
        """Every bit is one that the slot's registered writer set, or is being swept."""
        taken = await registry(self.redis, POOL)
        for key, held_by in bits(self.server).items():
            assert held_by, "a bitmap without bits"
            for slot in held_by:
                assert slot in taken, "a bit under a free number"
                if not taken[slot].startswith("sweeping:"):
                    assert key in self.held[taken[slot]], "a bit of an earlier incarnation"
        for name in self.alive:
            assert taken[self.slot_of[name]] == name


few_keys = st.sets(st.sampled_from(KEYS[:40]), max_size=20)
writers, hands = st.integers(0, 5), st.integers(0, 1)
steps = st.one_of(
    st.tuples(st.just("claim")),
    st.tuples(st.just("write"), writers, few_keys, few_keys),
    st.tuples(st.just("die"), writers),
    st.tuples(st.just("release"), writers),
    st.tuples(st.just("sweep"), hands, st.integers(1, 8)),
    st.tuples(st.just("kill_sweeper"), hands),
)


@given(st.lists(steps, max_size=30))
def test_no_bit_is_ever_seen_under_a_later_incarnation(
    shared: RedisProcess, topology: str, script: list[tuple[object, ...]]
) -> None:
    async def scenario() -> None:
        async with client_of(shared, topology) as redis:
            pool = Pool(redis, shared, [Hand(redis), Hand(redis)])
            for name, *arguments in script:
                await pool.renew()
                await getattr(pool, str(name))(*arguments)
                await pool.check()
            for hand in pool.hands:
                await hand.die()

    with control(shared) as client, pytest.MonkeyPatch.context() as patch:
        client.flushall()
        patch.setattr(slots, "COOLING_S", -1)
        # who dies says so: a lease must not lapse because a busy machine takes long over a step
        patch.setattr(slots, "LEASE_S", 3600.0)
        patch.setattr(sweeper, "PAGE_KEYS", 4)
        asyncio.run(scenario())
