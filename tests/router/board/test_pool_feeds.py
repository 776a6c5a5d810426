"""What gateways learn of each other's placements and of the index, through a real Redis."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from router.board.active import active_key
from router.board.load import ReplicaLoad
from router.board.pool_feeds import PoolFeeds
from router.choice.policies import PlacementRequest
from router.index import slots
from router.redis.redis_client import AsyncRedis, connect
from router.redis.redis_lane import Lane
from tests.router.index_redis import POOL, control, registry
from tests.router.loads import load
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

KEYS = tuple(b"%016d" % segment for segment in range(5))
# 5 segments of 128 tokens and a bit: all 5 can be reused.
REQUEST = PlacementRequest(700, KEYS)
PATIENT_S = 5.0


class Placer:
    """A gateway's scheduler of one pool, and its feeds."""

    def __init__(self, url: str) -> None:
        self.scheduler = scheduler = PoolScheduler(time.monotonic)
        text, binary = connect(url), connect(url, decode=False)
        self.feeds = PoolFeeds(
            text, binary, POOL, scheduler.board, scheduler.gateway, scheduler.heard, PATIENT_S
        )
        scheduler.announce = self.feeds.announce

    def place(self, request: PlacementRequest, depths: Mapping[int, int] | None) -> Attempt:
        return self.scheduler.place(SchedulingRequest(request, depths, 0.0))


def waiting(placer: Placer) -> dict[str, int]:
    loads = placer.scheduler.board.loads()
    return {replica_id: of.queue.waiting for replica_id, of in loads.items()}


def chosen_of(attempt: Attempt) -> str:
    assert attempt.chosen is not None
    return attempt.chosen.replica_id


def cached(attempt: Attempt) -> dict[str, tuple[int, int]]:
    """Replica -> tokens that the index confirms, and with those announced."""
    return {c.replica_id: (c.confirmed_tokens, c.cached_tokens) for c in attempt.placement.ranked}


@pytest.fixture
async def redis(redis: AsyncRedis) -> AsyncIterator[AsyncRedis]:
    """Two replicas live, in slots 0 and 1; their leases are renewed."""
    loads = [load("r0", slot=0), load("r1", slot=1)]
    for of in loads:
        await slots.claim(redis, POOL, of.incarnation, of.slot)
    task = asyncio.create_task(_renewed(redis, loads))
    yield redis
    await cancelled(task)


async def _renewed(client: AsyncRedis, loads: list[ReplicaLoad]) -> None:
    while True:
        for of in loads:
            await slots.renew(client, POOL, of.slot, of.incarnation, of.to_json())
        await asyncio.sleep(0.05)


@asynccontextmanager
async def gateway(server: RedisProcess, replicas: int = 2) -> AsyncIterator[Placer]:
    """Another gateway's feeds at work; its task may not end by itself."""
    placer = Placer(server.url)
    task = asyncio.create_task(placer.feeds.run())
    try:
        await until(lambda: len(placer.scheduler.board.loads()) == replicas)
        yield placer
        assert not task.done()
    finally:
        await cancelled(task)


async def test_placements_of_another_gateway_are_counted(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        await until(lambda: waiting(other)[chosen_of(attempt)] == 1)
        assert other.scheduler.board.loads()[chosen_of(attempt)].queue.prefill_tokens == 700


async def test_announcements_of_another_gateway_are_used(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        await until(lambda: sum(waiting(other).values()) == 1)
        assert cached(other.place(REQUEST, {}))[chosen_of(attempt)] == (0, 640)


async def test_a_gateway_counts_its_own_placements_once(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    async with gateway(server) as one, gateway(server) as other:
        attempt = one.place(REQUEST, {})
        one.scheduler.ended(attempt, chosen_of(attempt))
        await until(lambda: sum(waiting(other).values()) == 1)
        assert sum(waiting(one).values()) == 0


async def test_bits_belong_to_the_live_replica_in_the_slot(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    assert await slots.write_bits(redis, POOL, 1, "r1-1", KEYS[:3], [])
    async with gateway(server) as placer:
        depths, _ = await placer.feeds.look_up(KEYS)
        assert depths == {1: 3}
        assert cached(placer.place(REQUEST, depths)) == {"r0": (0, 0), "r1": (384, 384)}


async def test_bits_of_a_lost_incarnation_are_assigned_to_no_replica(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    await slots.claim(redis, POOL, "dead", 7)
    assert await slots.write_bits(redis, POOL, 7, "dead", KEYS, [])
    with control(server) as client:
        client.hset(slots.slots_key(POOL), "1", "another incarnation")
    async with gateway(server, replicas=1) as placer:
        depths, _ = await placer.feeds.look_up(KEYS)
        assert depths == {7: 5}
        assert cached(placer.place(REQUEST, depths)) == {"r0": (0, 0)}


async def test_no_feed_ends_on_an_unexpected_exception(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's transports raise RuntimeError, half-closed connections AttributeError."""
    placers = [Placer(server.url) for _ in range(2)]
    tasks = [asyncio.create_task(placer.feeds.run()) for placer in placers]
    await until(lambda: all(waiting(placer) for placer in placers))
    raised = 0

    def broken(lane: Lane, *commands: Any) -> Any:
        nonlocal raised
        raised += 1
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>")

    with monkeypatch.context() as patch:
        patch.setattr(Lane, "send", broken)  # leases are renewed through another client
        placers[0].place(REQUEST, None)
        await until(lambda: raised > 4)
    # the board says nothing that is older than a lease: it is read again
    for placer in placers:
        placer.scheduler.board.update([], None)
    await until(lambda: all(waiting(placer) for placer in placers))

    def hears() -> bool:
        chosen = placers[0].place(REQUEST, None)
        return bool(cached(placers[1].place(REQUEST, {}))[chosen_of(chosen)][1])

    await until(hears)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        await cancelled(task)


async def test_foreign_data_in_redis_removes_no_replica_from_the_board(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    with control(server) as client:
        client.hset(slots.slots_key(POOL), "nobody", "me")
        client.hset(slots.slots_key(POOL), b"\xff\xfe", b"\xff")
        client.hset(slots.slots_key(POOL), "7", b"\xff\xfe")
        client.hset(slots.slots_key(POOL), "99999999999", "i")
        client.set(slots.lease_key(POOL, 7), b"\xff\xfe")
        client.set(active_key(POOL), b"\xff")
    placer = Placer(server.url)
    task = asyncio.create_task(placer.feeds.run())
    await until(lambda: waiting(placer).keys() == {"r0", "r1"})
    assert await registry(redis, POOL) == {0: "r0-1", 1: "r1-1", 7: "\ufffd\ufffd"}
    await cancelled(task)
