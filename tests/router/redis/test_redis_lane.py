"""One connection under many calls: everyone gets their own reply, or an error."""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ResponseError

from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from router.redis.redis_lane import Lane, open_lane
from tests.ports import free_ports
from tests.router.redis.test_redis_client import self_signed
from tests.router.redis_process import RedisProcess
from tests.waiting import until

KEYS = [b"k%d" % n for n in range(500)]


@pytest.fixture
async def redis(redis: AsyncRedis) -> AsyncRedis:
    """It has all KEYS."""
    await redis.mset({key: b"value of " + key for key in KEYS})
    return redis


@pytest.fixture
async def lane(redis: AsyncRedis) -> AsyncIterator[Lane]:
    lane = await open_lane(redis, b"k")
    yield lane
    await lane.aclose()


def values(keys: list[bytes]) -> list[bytes]:
    return [b"value of " + key for key in keys]


async def test_each_of_many_calls_at_once_gets_its_own_reply(lane: Lane) -> None:
    asked = [[KEYS[n], KEYS[-n]] * (n % 30 + 1) for n in range(400)]
    replies = await asyncio.gather(*(lane.mget(keys) for keys in asked))
    assert replies == [values(keys) for keys in asked]


async def test_commands_that_are_sent_together_use_one_write(lane: Lane) -> None:
    written: list[bytes] = []
    transport = lane._transport

    def write(data: bytes) -> None:
        written.append(data)
        transport.write(data)

    cast(Any, lane)._transport = SimpleNamespace(write=write, abort=transport.abort)
    replies = lane.send(("GET", b"k1"), ("GET", b"k2"), ("STRLEN", b"k3"))
    assert await asyncio.gather(*replies) == [b"value of k1", b"value of k2", 11]
    assert len(written) == 1


@settings(max_examples=settings().max_examples // 2)
@given(st.lists(st.tuples(st.integers(1, 400), st.sampled_from(["at once", "later", "never"]))))
def test_canceled_calls_do_not_shift_the_replies_of_others(
    shared: RedisProcess, calls: list[tuple[int, str]]
) -> None:
    async def all_calls() -> None:
        redis = connect(shared.url)
        await redis.mset({key: b"value of " + key for key in KEYS})
        lane = await open_lane(redis, b"k")
        asked = [(KEYS[-count:], cancelled) for count, cancelled in calls]
        tasks = [asyncio.create_task(lane.mget(keys)) for keys, _ in asked]
        for when in ("at once", "later"):
            for task, (_, cancelled) in zip(tasks, asked, strict=True):
                if cancelled == when:
                    task.cancel()
            await asyncio.sleep(0)
        replies = await asyncio.gather(*tasks, return_exceptions=True)
        for (keys, cancelled), reply in zip(asked, replies, strict=True):
            if cancelled == "never" or isinstance(reply, list):
                assert reply == values(keys)
        assert await lane.mget(KEYS[:3]) == values(KEYS[:3])
        await lane.aclose()
        await redis.aclose()

    asyncio.run(all_calls())


async def test_an_error_reply_is_only_for_the_call_that_made_it(lane: Lane) -> None:
    first, wrong, last = await asyncio.gather(
        lane.mget(KEYS[:1]), lane.mget([]), lane.mget(KEYS[1:2]), return_exceptions=True
    )
    assert [first, last] == [values(KEYS[:1]), values(KEYS[1:2])]
    assert isinstance(wrong, ResponseError)


async def test_a_key_that_is_missing_or_not_a_string_is_none(lane: Lane, redis: AsyncRedis) -> None:
    await redis.hset("hash", "field", "value")
    assert await lane.mget([b"missing", b"hash", KEYS[0]]) == [None, None, b"value of k0"]


async def test_a_connection_that_ends_fails_every_call_under_way_and_every_later_one(
    lane: Lane, redis: AsyncRedis, server: RedisProcess
) -> None:
    server.process.send_signal(signal.SIGSTOP)
    calls = [asyncio.create_task(lane.mget(KEYS[:2])) for _ in range(10)]
    await asyncio.sleep(0)
    await lane.aclose()
    server.process.send_signal(signal.SIGCONT)
    for call in calls:
        with pytest.raises(REDIS_FAILURES):
            await call
    with pytest.raises(REDIS_FAILURES):
        await lane.mget(KEYS[:1])


async def test_a_connection_that_redis_closes_is_noticed(lane: Lane, redis: AsyncRedis) -> None:
    await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await until(lambda: lane.closed)
    with pytest.raises(REDIS_FAILURES):
        await lane.mget(KEYS[:1])


async def test_a_closed_lane_has_no_open_connection(lane: Lane, redis: AsyncRedis) -> None:
    before = len(await redis.client_list())
    another = await open_lane(redis, b"k")
    assert len(await redis.client_list()) == before + 1
    await another.aclose()
    async with asyncio.timeout(60):
        while len(await redis.client_list()) > before:  # noqa: ASYNC110  # each look is a command
            await asyncio.sleep(0.01)


async def test_opening_a_lane_to_an_unreachable_server_raises() -> None:
    (port,) = free_ports(1)
    with pytest.raises(REDIS_FAILURES):
        await open_lane(connect(f"redis://127.0.0.1:{port}/0"), b"k")


@pytest.mark.parametrize(
    "babble",
    [b"HTTP/1.1 400 Bad Request\r\n", b"+OK\r\n", b"*1\r\n$-1\r\n", b"*2\r\n+A\r\n+B\r\n+C\r\n"],
)
async def test_a_server_out_of_step_fails_the_call_and_loses_the_connection(babble: bytes) -> None:
    async def greet_then_babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while b"MGET" not in (data := await reader.read(1000)):
            for command in data.split(b"\r\n*"):
                greeting = b"%1\r\n$5\r\nproto\r\n:3\r\n"
                writer.write(greeting if b"HELLO" in command else b"+OK\r\n")
        writer.write(babble)
        await reader.read()
        writer.close()

    other = await asyncio.start_server(greet_then_babble, "127.0.0.1", 0)
    lane = await open_lane(connect(f"redis://127.0.0.1:{port_of(other)}/0"), b"k")
    await asyncio.wait([asyncio.create_task(lane.mget(KEYS[:2]))])
    assert lane.closed
    with pytest.raises(REDIS_FAILURES):
        await lane.mget(KEYS[:2])
    await lane.aclose()
    other.close()


def port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])


@pytest.mark.parametrize("loop", [asyncio, uvloop])
@pytest.mark.parametrize("tls", [False, True])
def test_the_lane_takes_the_connection_over_with_both_event_loops(
    server: RedisProcess, tmp_path: Path, loop: Any, tls: bool
) -> None:
    certificate, key = self_signed(tmp_path)

    async def many_calls() -> None:
        async with secured(server.port, certificate, key) as port:
            url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
            redis = connect(url if tls else server.url)
            await redis.mset({key: b"value of " + key for key in KEYS})
            lane = await open_lane(redis, b"k")
            replies = await asyncio.gather(*(lane.mget(KEYS[n:]) for n in range(50)))
            assert replies == [values(KEYS[n:]) for n in range(50)]
            await lane.aclose()
            await redis.aclose()

    loop.run(many_calls())


@asynccontextmanager
async def secured(redis_port: int, certificate: Path, key: Path) -> AsyncIterator[int]:
    """A port that speaks TLS and passes on to Redis, which may have no TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", redis_port)
        await asyncio.gather(copy(reader, to_redis), copy(from_redis, writer))

    proxy = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    yield port_of(proxy)
    proxy.close()
