"""What gateways report of demand, and what the autoscaler makes of it, through a real Redis."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.soak.held_items import held_items
from router.board import pool_demand as demand
from router.board.pool_demand import (
    FORGET_S,
    Decided,
    Demand,
    DemandCounters,
    DemandReader,
    GrowingSum,
    demand_key,
    read_decided,
    tell,
    tell_decided,
)
from router.redis.redis_client import AsyncRedis, connect
from router.redis.signature import Signer, signed
from tests.ports import free_ports
from tests.router.index_redis import PATIENCE_S, POOL, TOPOLOGIES, control
from tests.router.redis_process import RedisProcess, running
from tests.waiting import cancelled, until

pytestmark = pytest.mark.usefixtures("redis_timeout")


@pytest.fixture(scope="module", params=TOPOLOGIES)
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def reporting(
    redis: AsyncRedis, gateway: str, counters: DemandCounters
) -> AsyncIterator[None]:
    task = asyncio.create_task(tell(redis, POOL, gateway, counters, signer=None))
    try:
        yield
        assert not task.done()
    finally:
        await cancelled(task)


async def read_until(reader: DemandReader, true: Callable[[Demand], bool]) -> Demand:
    async with asyncio.timeout(PATIENCE_S):
        while not true(demand := await reader.read()):  # noqa: ASYNC110  # each is a look
            await asyncio.sleep(0.05)
    return demand


def write(server: RedisProcess, gateway: str, counters: DemandCounters) -> None:
    counters.sequence += 1
    with control(server) as client:
        client.hset(demand_key(POOL), gateway, msgspec.json.encode(counters))


async def test_demand_of_all_gateways_is_added_up_and_published_repeatedly(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    one = DemandCounters(arrived=5, uncached_tokens=700, rejected=1, waiting=2, queued_tokens=300)
    other = DemandCounters(arrived=2, overflowed=1, waiting=1)
    reader = DemandReader(redis, POOL, signer=None)
    async with reporting(redis, "one", one), reporting(redis, "other", other):
        await read_until(reader, lambda demand: demand.arrived == 7)
        one.arrived += 10
        one.waiting -= 2
        changed = await read_until(reader, lambda demand: demand.arrived == 17)
        # nothing new, and reported all the same
        demand = await read_until(reader, lambda demand: demand.told_at != changed.told_at)
    assert (demand.uncached_tokens, demand.rejected, demand.overflowed) == (700, 1, 1)
    assert (demand.waiting, demand.queued_tokens) == (1, 300)
    with control(server) as client:
        assert 0 < client.ttl(demand_key(POOL)) <= 60


async def test_demand_is_empty_before_any_gateway_reports(redis: AsyncRedis) -> None:
    assert await DemandReader(redis, POOL, signer=None).read() == Demand()


async def test_counts_of_a_gone_gateway_remain_and_its_waiting_requests_do_not(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    clock = Clock()
    reader = DemandReader(redis, POOL, clock, signer=None)
    stays, goes = DemandCounters(arrived=3, waiting=1), DemandCounters(arrived=4, waiting=5)
    write(server, "stays", stays)
    write(server, "goes", goes)
    assert await reader.read() == Demand(arrived=7, waiting=6, told_at=clock.now)
    heard_at = clock.now
    clock.now += FORGET_S
    assert await reader.read() == Demand(arrived=7, waiting=6, told_at=heard_at)
    clock.now += 1.0
    write(server, "stays", stays)
    assert await reader.read() == Demand(arrived=7, waiting=1, told_at=clock.now)
    with control(server) as client:
        assert client.hkeys(demand_key(POOL)) == [b"stays"]
    goes.arrived += 1
    write(server, "goes", goes)  # it was only cut off
    assert (await reader.read()).arrived == 8


async def test_a_flush_or_a_gateway_restart_does_not_reduce_the_counts(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    reader = DemandReader(redis, POOL, signer=None)
    write(server, "a", DemandCounters(arrived=100, uncached_tokens=1000))
    await reader.read()
    with control(server) as client:
        client.flushall()
    assert (await reader.read()).arrived == 100
    write(server, "a", DemandCounters(arrived=6, uncached_tokens=60))
    demand = await reader.read()
    assert (demand.arrived, demand.uncached_tokens) == (106, 1060)


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"arrived": "many"}', '{"arrived": null}'])
async def test_demand_from_another_release_is_ignored(
    redis: AsyncRedis, server: RedisProcess, text: str
) -> None:
    reader = DemandReader(redis, POOL, signer=None)
    write(server, "a", DemandCounters(arrived=100, waiting=1))
    await reader.read()
    with control(server) as client:
        client.hset(demand_key(POOL), "a", text)
        client.hset(demand_key(POOL), "b", text)
    assert (await reader.read()).arrived == 100
    write(server, "a", DemandCounters(arrived=101))
    assert (await reader.read()).arrived == 101


SIGNER = Signer("secret")


def signed_as(signer: Signer, gateway: str, counters: DemandCounters) -> str:
    text = msgspec.json.encode(counters).decode()
    return signed(signer, f"{demand_key(POOL)}:{gateway}", text)


async def test_demand_that_the_fleet_signed_is_read(redis: AsyncRedis) -> None:
    reader = DemandReader(redis, POOL, signer=SIGNER)
    task = asyncio.create_task(
        tell(redis, POOL, "one", DemandCounters(arrived=5, waiting=2), signer=SIGNER)
    )
    try:
        demand = await read_until(reader, lambda demand: demand.arrived == 5)
    finally:
        await cancelled(task)
    assert demand.waiting == 2


MANY = DemandCounters(sequence=10**6, arrived=10**6, waiting=10**6, queued_tokens=10**9)
FORGED = {
    "unsigned": msgspec.json.encode(MANY).decode(),
    "of another fleet": signed_as(Signer("another"), "a", MANY),
    "of another gateway": signed_as(SIGNER, "b", MANY),
    "no demand": signed(SIGNER, f"{demand_key(POOL)}:a", "[]"),
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
async def test_demand_without_a_valid_signature_is_ignored(
    redis: AsyncRedis, server: RedisProcess, value: str
) -> None:
    reader = DemandReader(redis, POOL, signer=SIGNER)
    counters = DemandCounters(sequence=1, arrived=5, waiting=2)
    for text in (signed_as(SIGNER, "a", counters), value):
        with control(server) as client:
            client.hset(demand_key(POOL), "a", text)
        demand = await reader.read()
        assert (demand.arrived, demand.waiting, demand.queued_tokens) == (5, 2, 0)


async def test_replayed_demand_is_ignored(redis: AsyncRedis, server: RedisProcess) -> None:
    """Also when its gateway has gone: a lower count would be taken for a gateway that restarted."""
    clock = Clock()
    reader = DemandReader(redis, POOL, clock, signer=SIGNER)
    told = [
        signed_as(SIGNER, "a", DemandCounters(sequence=number, arrived=100 * number))
        for number in (1, 2)
    ]
    for text, wait_s in ((told[0], 0.0), (told[1], 0.0), (told[0], FORGET_S + 1.0), (told[0], 0.0)):
        with control(server) as client:
            client.hset(demand_key(POOL), "a", text)
        demand = await reader.read()
        clock.now += wait_s
        await reader.read()
    assert demand.arrived == 200


@pytest.mark.parametrize("signer", [None, Signer("another")])
async def test_a_decision_from_outside_the_fleet_is_ignored(
    redis: AsyncRedis, signer: Signer | None
) -> None:
    decided = Decided(demand=1, target=9000, because="forged")
    await tell_decided(redis, POOL, decided, signer)
    assert await read_decided(redis, POOL, SIGNER) is None
    await tell_decided(redis, POOL, decided, SIGNER)
    assert await read_decided(redis, POOL, SIGNER) == decided


async def test_negative_counts_are_read_as_zero(redis: AsyncRedis, server: RedisProcess) -> None:
    reader = DemandReader(redis, POOL, signer=None)
    write(server, "a", DemandCounters(arrived=-5, waiting=-5, queued_tokens=-1))
    demand = await reader.read()
    assert (demand.arrived, demand.waiting, demand.queued_tokens) == (0, 0, 0)


async def test_demand_keeps_its_last_value_and_its_age_during_an_outage(
    tmp_path: Path, redis_timeout: Callable[[float], None]
) -> None:
    redis_timeout(1.0)
    (port,) = free_ports(1)
    redis = connect(f"redis://127.0.0.1:{port}/0")
    clock, counters = Clock(), DemandCounters(arrived=1)
    reader = DemandReader(redis, POOL, clock, signer=None)
    with running(tmp_path, port, f"port {port}") as server:
        async with reporting(redis, "a", counters):
            before = await read_until(reader, lambda demand: demand.arrived == 1)
            os.kill(server.process.pid, signal.SIGSTOP)
            clock.now += 5
            counters.arrived += 1
            assert await reader.read() == before
            os.kill(server.process.pid, signal.SIGCONT)
            await read_until(reader, lambda demand: demand.arrived == 2)
    await redis.aclose()


async def test_without_redis_demand_is_empty() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    counters = DemandCounters()
    async with reporting(redis, "a", counters):
        await until(lambda: counters.sequence > 1)
        assert await DemandReader(redis, POOL, signer=None).read() == Demand()


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-5, 1000)), max_size=20))
def test_a_counter_over_all_sources_never_decreases(seen: list[dict[str, int]]) -> None:
    total, before = GrowingSum(), 0
    for counts in seen:
        now = total.add(counts)
        assert now >= before
        before = now


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_counter_over_all_sources_counts_each_source_once(grown: list[list[int]]) -> None:
    total, now = GrowingSum(), 0
    for source, steps in enumerate(grown):
        count = 0
        for step in steps:
            count += step
            now = total.add({str(source): count})
    assert now == sum(map(sum, grown))


def test_former_sources_are_eventually_forgotten() -> None:
    total = GrowingSum()
    for number in range(5 * demand.SOURCES_KEPT):
        assert total.add({f"gateway-{number}": 2, "stays": number}) == 2 * (number + 1) + number
    assert held_items(total).total() <= demand.SOURCES_KEPT


async def test_counters_are_written_only_while_the_autoscaler_needs_them(
    redis: AsyncRedis, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "WRITE_PERIOD_S", 0.01)
    asked, is_scaled = 0, False

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        return is_scaled

    writing = tell(redis, POOL, "a", DemandCounters(), signer=None, is_wanted=is_wanted)
    task = asyncio.create_task(writing)
    await until(lambda: asked > 3)
    with control(server) as client:
        assert not client.exists(demand_key(POOL))
        is_scaled = True
        await until(lambda: bool(client.exists(demand_key(POOL))))
    await cancelled(task)
