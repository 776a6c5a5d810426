"""Gateways share what they placed through a real Redis, through any failure of it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from router.board import placed_stream
from router.board.placed_stream import (
    EXPIRE_S,
    MAX_LENGTH,
    PAUSE_S,
    QUEUE_LENGTH,
    PlacedStream,
    stream_key,
)
from router.board.recent import Placed
from router.redis.redis_client import connect
from router.redis.signature import Signer, signed_bytes
from tests.router.index_redis import POOL, TOPOLOGIES, control, server_of
from tests.router.redis_process import RedisProcess, running
from tests.waiting import until

KEY = stream_key(POOL)
BACK_WITHIN_S = 60.0


def placed(ticket: str, gateway: str = "g1") -> Placed:
    return Placed(gateway, ticket, 3, "abc", 700, 188, 0.25, (b"8 bytes.",), (b"\x00\xff" * 4,))


def entry(ticket: str, number: int = 1, signer: Signer | None = None, key: str = KEY) -> bytes:
    """What the gateway g1 writes."""
    return signed_bytes(signer, key, msgspec.msgpack.encode([number, placed(ticket)]))


class Gateway:
    def __init__(self, url: str, name: str, signer: Signer | None = None) -> None:
        self.redis = connect(url, decode=False)
        self.heard: list[Placed] = []
        self.stream = PlacedStream(self.redis, POOL, name, self.heard.append, signer=signer)

    @property
    def tickets(self) -> list[str]:
        return [of.ticket for of in self.heard]


@asynccontextmanager
async def gateway(
    port: int, name: str, topology: str = "redis", signer: Signer | None = None
) -> AsyncIterator[Gateway]:
    """A gateway's end of the stream; its task may not end by itself."""
    made = Gateway(f"{topology}://127.0.0.1:{port}", name, signer)
    task = asyncio.create_task(made.stream.run())
    try:
        yield made
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
        await made.redis.aclose()


@pytest.mark.parametrize("topology", TOPOLOGIES)
async def test_a_placement_reaches_all_other_gateways_unchanged(
    topology: str, tmp_path: Path
) -> None:
    with server_of(topology, tmp_path) as server:
        async with (
            gateway(server.port, "g1", topology) as one,
            gateway(server.port, "g2", topology) as two,
            gateway(server.port, "g3", topology) as three,
        ):
            await _place_until_received(one, two, "connected")
            one.stream.append(placed("t1"))
            await until(lambda: two.tickets[-1] == three.tickets[-1] == "t1")
            assert two.heard[-1] == three.heard[-1] == placed("t1")
            assert not one.heard
            await _place_until_received(two, one, "t2", "g2")
            assert {of.gateway for of in one.heard} == {"g2"}


async def test_placements_are_received_in_order_and_exactly_once(server: RedisProcess) -> None:
    tickets = [f"t{i}" for i in range(500)]
    async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
        await _place_until_received(one, two, "connected")
        for ticket in tickets:
            one.stream.append(placed(ticket))
        await until(lambda: tickets[-1] in two.tickets)
        assert [of for of in two.tickets if of != "connected"] == tickets
        assert one.stream.dropped == 0


async def test_a_request_is_sent_before_its_placement_is_published(
    server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with control(server) as client:
        async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
            await _place_until_received(one, two, "connected")
            told = int(client.xlen(KEY))
            monkeypatch.setattr(placed_stream, "BEHIND_S", 3600.0)
            one.stream.append(placed("t1"))
            await until(one.stream._queue.empty)
            # what a gateway does of its request until it waits for the engine
            for _ in range(20):
                await asyncio.sleep(0)
            assert int(client.xlen(KEY)) == told


async def test_many_placements_take_few_reads(server: RedisProcess) -> None:
    def reads() -> int:
        with control(server) as client:
            return int(client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0))

    clock = asyncio.get_running_loop().time
    async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
        await _place_until_received(one, two, "connected")
        before, began = reads(), clock()
        for number in range(500):
            one.stream.append(placed(f"t{number}"))
            await asyncio.sleep(0.001)
        await until(lambda: "t499" in two.tickets)
        # of each gateway, those that find nothing included
        assert reads() - before <= 2 * ((clock() - began) / PAUSE_S + 3)


async def test_a_new_gateway_reads_only_the_placements_of_the_last_seconds(
    server: RedisProcess,
) -> None:
    with control(server) as client:
        seconds, micros = client.time()
        now = seconds * 1000 + micros // 1000
        for number, (age, ticket) in enumerate(((60_000, "old"), (1_000, "new")), start=1):
            fields = {b"p": entry(ticket, number)}
            client.xadd(KEY, fields, id=f"{now - age}-0")  # type: ignore[arg-type]
    async with gateway(server.port, "g2") as two:
        await until(lambda: two.heard)
        assert two.tickets == ["new"]


async def test_entries_of_another_version_are_skipped(server: RedisProcess) -> None:
    async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
        await _place_until_received(one, two, "connected")
        with control(server) as client:
            client.xadd(KEY, {b"p": b"\xc1 no msgpack"})
            client.xadd(KEY, {b"p": msgspec.msgpack.encode(["too", "short"])})
            client.xadd(KEY, {b"unknown": b"field"})
        one.stream.append(placed("t1"))
        await until(lambda: "t1" in two.tickets)
        assert {*two.tickets} == {"connected", "t1"}


SIGNER = Signer("secret")
FORGED = {
    "unsigned": entry("forged", 1000),
    "of another fleet": entry("forged", 1000, Signer("another")),
    "of another pool": entry("forged", 1000, SIGNER, stream_key("fleet/other")),
    "empty": b"",
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
async def test_a_placement_without_a_valid_signature_is_ignored(
    server: RedisProcess, value: bytes
) -> None:
    async with (
        gateway(server.port, "g1", signer=SIGNER) as one,
        gateway(server.port, "g2", signer=SIGNER) as two,
    ):
        await _place_until_received(one, two, "connected")
        with control(server) as client:
            client.xadd(KEY, {b"p": value})
        await _place_until_received(one, two, "t1")
        assert {*two.tickets} == {"connected", "t1"}


async def test_a_placement_that_is_duplicated_in_redis_counts_once(server: RedisProcess) -> None:
    async with (
        gateway(server.port, "g1", signer=SIGNER) as one,
        gateway(server.port, "g2", signer=SIGNER) as two,
    ):
        one.stream.append(placed("t1"))
        await until(lambda: two.tickets == ["t1"])
        with control(server) as client:
            entries: Any = client.xrange(KEY)
            for _, fields in entries:
                client.xadd(KEY, fields)
        await _place_until_received(one, two, "t2")
        assert two.tickets.count("t1") == 1


async def test_the_stream_stays_short_and_expires_without_placements(server: RedisProcess) -> None:
    with control(server) as client:
        pipe = client.pipeline()
        for _ in range(2 * MAX_LENGTH):
            pipe.xadd(KEY, {b"p": b""})
        pipe.execute()
        async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
            await _place_until_received(one, two, "t1")
        assert MAX_LENGTH <= int(client.xlen(KEY)) < 1.1 * MAX_LENGTH
        assert 0 < int(client.ttl(KEY)) <= EXPIRE_S


async def test_placements_that_cannot_be_written_to_redis_are_dropped_and_counted() -> None:
    async with gateway(1, "g1") as one:
        for _ in range(QUEUE_LENGTH + 10):
            one.stream.append(placed("t"))
        assert one.stream.dropped == 10
        await until(lambda: one.stream.dropped == QUEUE_LENGTH + 10)


async def test_a_cancellation_at_any_moment_ends_it(server: RedisProcess) -> None:
    async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
        await _place_until_received(one, two, "connected")
        for steps in range(16):
            task = asyncio.create_task(one.stream.run())
            one.stream.append(placed("t1"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            async with asyncio.timeout(BACK_WITHIN_S):
                await asyncio.wait([task])


@pytest.mark.parametrize("how", ["killed", "frozen", "flushed"])
async def test_gateways_receive_each_others_placements_again_after_an_outage(
    tmp_path: Path, how: str
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(server_of("redis", tmp_path))
        async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
            await _place_until_received(one, two, "connected")
            one.stream.append(placed("before"))
            await until(lambda: "before" in two.tickets)
            if how == "killed":
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait()
                await _lost(one)
                stack.enter_context(running(tmp_path, server.port, f"port {server.port}\n"))
            elif how == "frozen":
                os.kill(server.process.pid, signal.SIGSTOP)
                await _lost(one)
                os.kill(server.process.pid, signal.SIGCONT)
            else:
                with control(server) as client:
                    client.flushall()
            await _place_until_received(one, two, "after")
            assert two.tickets.count("before") == 1


async def test_placements_are_received_after_a_clock_is_set_back_and_redis_is_emptied(
    server: RedisProcess,
) -> None:
    async with gateway(server.port, "g1") as one, gateway(server.port, "g2") as two:
        with control(server) as client:
            fields = {b"p": msgspec.msgpack.encode([1, placed("future", "g3")])}
            client.xadd(KEY, fields, id="99999999999999-0")  # type: ignore[arg-type]
            await until(lambda: two.heard)
            one.stream.append(placed("then"))  # numbered after the future one
            await until(lambda: "then" in two.tickets)
            client.flushall()
        await _place_until_received(one, two, "after")
        assert two.tickets.count("future") == two.tickets.count("then") == 1


async def _lost(one: Gateway) -> None:
    """Places until Redis is known not to take it."""

    def dropped() -> bool:
        one.stream.append(placed("lost"))
        return one.stream.dropped > 0

    await until(dropped, BACK_WITHIN_S)


async def _place_until_received(
    one: Gateway, two: Gateway, ticket: str, gateway: str = "g1"
) -> None:
    """Places until it is heard."""
    async with asyncio.timeout(BACK_WITHIN_S):
        while ticket not in two.tickets:
            one.stream.append(placed(ticket, gateway))
            await asyncio.sleep(0.05)
