"""What gateways run with, as others read it, in a real Redis."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from router.board.fleet_settings import (
    EXPIRE_S,
    GivenSettings,
    SettingsReader,
    SettingsWriter,
    forget_settings,
    read_settings,
    settings_key,
)
from router.redis import redis_keys, signature
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from router.redis.signature import Signer, signed
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess
from tests.waiting import cancelled, until

FLEET = "fleet@cluster"
SIGNER = Signer("secret")


pytestmark = pytest.mark.usefixtures("redis_timeout")


def writer_of(redis: AsyncRedis, now: float = 0.0) -> SettingsWriter:
    return SettingsWriter(redis, FLEET, SIGNER, lambda: now)


async def stored(redis: AsyncRedis) -> tuple[int, str] | None:
    found = await read_settings(redis, FLEET, SIGNER)
    return (found.version, found.fleet) if found else None


async def test_the_newest_settings_have_the_highest_version(redis: AsyncRedis) -> None:
    assert await stored(redis) is None
    one, other = writer_of(redis), writer_of(redis)
    one.give("a")
    await one.write()
    assert await stored(redis) == (1, "a")
    other.give("a")
    await other.write()
    assert await stored(redis) == (1, "a")
    one.give("b")
    await one.write()
    assert await stored(redis) == (2, "b")
    # one that was not given them yet does not take them back
    await other.write()
    assert await stored(redis) == (2, "b")
    other.give("b")
    await other.write()
    one.give("a")
    await one.write()
    assert await stored(redis) == (3, "a")
    assert 0 < await redis.ttl(settings_key(FLEET)) <= EXPIRE_S


async def test_a_writer_without_settings_writes_nothing(redis: AsyncRedis) -> None:
    await writer_of(redis).write()
    assert await stored(redis) is None


async def test_lost_settings_are_written_again_with_their_version(redis: AsyncRedis) -> None:
    writer = writer_of(redis)
    for settings in ("a", "b"):
        writer.give(settings)
        await writer.write()
    await redis.flushall()
    await writer.write()
    assert await stored(redis) == (2, "b")


async def test_a_new_fleet_deletes_the_settings_of_an_earlier_one(redis: AsyncRedis) -> None:
    writer = writer_of(redis)
    writer.give("a")
    await writer.write()
    await forget_settings(redis, FLEET)
    assert await stored(redis) is None


async def test_new_settings_are_written_at_once(redis: AsyncRedis) -> None:
    writer = writer_of(redis)
    running = asyncio.create_task(writer.run())
    seen: list[tuple[int, str] | None] = []

    async def look() -> None:
        while True:
            seen[:] = [await stored(redis)]
            await asyncio.sleep(0.01)

    looking = asyncio.create_task(look())
    writer.give("a")
    await until(lambda: seen == [(1, "a")])
    writer.give("b")
    await until(lambda: seen == [(2, "b")])
    await cancelled(looking)
    await cancelled(running)


KEY = settings_key(FLEET)
TEXT = msgspec.json.encode(GivenSettings(10**12, "forged")).decode()
FORGED = {
    "unsigned": TEXT,
    "no object": "[]",
    "of another fleet of the name": signed(Signer("another"), KEY, TEXT),
    "of another cluster": signed(SIGNER, settings_key("fleet@another"), TEXT),
    "of another key": signed(SIGNER, redis_keys.key(FLEET, "active"), TEXT),
    "of another schema": signed(SIGNER, KEY.replace(":1:", ":2:"), TEXT),
    "of another version": signed(SIGNER, KEY, TEXT).replace(str(10**12), str(10**13)),
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
async def test_settings_that_the_fleet_did_not_sign_are_ignored_and_replaced(
    redis: AsyncRedis, server: RedisProcess, value: str | bytes
) -> None:
    before = signature.forged["settings"]
    writer, reader = writer_of(redis), SettingsReader(redis, FLEET, SIGNER)
    writer.give("a")
    await writer.write()
    assert await reader.newer() == GivenSettings(1, "a")
    with control(server) as client:
        client.set(KEY, value)
    assert await reader.newer() is None and await stored(redis) is None
    assert signature.forged["settings"] > before
    await writer.write()
    assert await stored(redis) == (1, "a")


async def test_a_key_of_another_type_has_no_settings_and_is_replaced(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    with control(server) as client:
        client.rpush(KEY, "1")
    writer = writer_of(redis)
    writer.give("a")
    await writer.write()
    assert await stored(redis) == (1, "a")


async def test_signed_settings_of_the_wrong_type_are_ignored(redis: AsyncRedis) -> None:
    await redis.set(KEY, signed(SIGNER, KEY, "[]"))
    assert await stored(redis) is None


async def test_replayed_settings_are_ignored_and_replaced(
    redis: AsyncRedis,
) -> None:
    writer, reader = writer_of(redis), SettingsReader(redis, FLEET, SIGNER)
    writer.give("a")
    await writer.write()
    old = cast(str, await redis.get(KEY))
    assert await reader.newer() == GivenSettings(1, "a")
    writer.give("b")
    await writer.write()
    assert await reader.newer() == GivenSettings(2, "b")
    assert await reader.newer() is None
    await redis.set(KEY, old)
    assert await reader.newer() is None
    await writer.write()
    assert await stored(redis) == (2, "b")


async def test_a_new_version_is_higher_even_if_redis_and_all_gateways_lost_the_last_one(
    redis: AsyncRedis,
) -> None:
    reader = SettingsReader(redis, FLEET, SIGNER)
    for settings, now in (("a", 1000.0), ("b", 1000.5)):
        writer = writer_of(redis, now)
        writer.give(settings)
        await writer.write()
        found = await reader.newer()
        assert found is not None and found.fleet == settings
        await redis.flushall()


async def test_a_gateway_whose_clock_is_behind_writes_a_higher_version(redis: AsyncRedis) -> None:
    for settings, now in (("a", 1000.0), ("b", 900.0)):
        writer = writer_of(redis, now)
        writer.give(settings)
        await writer.write()
    assert await stored(redis) == (1000001, "b")


async def test_without_redis_reads_raise_and_the_writer_keeps_running() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(REDIS_FAILURES):
        await read_settings(redis, FLEET, SIGNER)
    writer = writer_of(redis)
    writer.give("a")
    running = asyncio.create_task(writer.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    await cancelled(running)
    await redis.aclose()
