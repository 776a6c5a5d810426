"""What gateways run with, as others read it, in a real Redis."""

from __future__ import annotations

import asyncio

import pytest

from router.fleet_settings import (
    EXPIRE_S,
    SettingsWriter,
    forget_settings,
    read_settings,
    settings_key,
)
from router.redis_client import REDIS_FAILURES, AsyncRedis, connect
from tests.waiting import cancelled, until

FLEET = "fleet@cluster"


async def stored(redis: AsyncRedis) -> tuple[int, str] | None:
    found = await read_settings(redis, FLEET)
    return (found.version, found.fleet) if found else None


async def test_the_newest_settings_have_the_highest_version(redis: AsyncRedis) -> None:
    assert await stored(redis) is None
    one, other = SettingsWriter(redis, FLEET), SettingsWriter(redis, FLEET)
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


async def test_a_writer_that_was_given_nothing_writes_nothing(redis: AsyncRedis) -> None:
    await SettingsWriter(redis, FLEET).write()
    assert await stored(redis) is None


async def test_lost_settings_are_written_again_with_their_version(redis: AsyncRedis) -> None:
    writer = SettingsWriter(redis, FLEET)
    for settings in ("a", "b"):
        writer.give(settings)
        await writer.write()
    await redis.flushall()
    await writer.write()
    assert await stored(redis) == (2, "b")


async def test_a_fleet_that_begins_forgets_what_an_earlier_one_had(redis: AsyncRedis) -> None:
    writer = SettingsWriter(redis, FLEET)
    writer.give("a")
    await writer.write()
    await forget_settings(redis, FLEET)
    assert await stored(redis) is None


async def test_what_is_given_is_written_at_once(redis: AsyncRedis) -> None:
    writer = SettingsWriter(redis, FLEET)
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


async def test_settings_of_another_release_are_as_none(redis: AsyncRedis) -> None:
    await redis.set(settings_key(FLEET), "[]")
    assert await stored(redis) is None


async def test_without_redis_reading_raises_and_writing_goes_on() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(REDIS_FAILURES):
        await read_settings(redis, FLEET)
    writer = SettingsWriter(redis, FLEET)
    writer.give("a")
    running = asyncio.create_task(writer.run())
    await asyncio.sleep(0.05)
    assert not running.done()
    await cancelled(running)
    await redis.aclose()
