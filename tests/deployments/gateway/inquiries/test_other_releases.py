"""Releases with different schemas of keys notice each other in Redis."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.inquiries.other_releases import (
    EXPIRE_S,
    IN_USE_S,
    SchemaWatch,
    others_in_use,
)
from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis, connect
from tests.fakes.engine import FakeEngine
from tests.fakes.front import REDIS_NAME, gateway_before
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess
from tests.waiting import until

FLEET = "prod.0123abcd"
NOW = 1_800_000_000.0


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


class Release:
    """A gateway of a release, and the clock of its machine."""

    def __init__(self, redis: AsyncRedis, schema: int) -> None:
        self.now = NOW
        self.watch = SchemaWatch(redis, FLEET, lambda: self.now, schema)


async def test_two_releases_with_different_schemas_report_each_other_once(
    redis: AsyncRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    old, new = Release(redis, 1), Release(redis, 2)
    await old.watch.look()
    assert not caplog.records
    new.now += 20
    await new.watch.look()
    await new.watch.look()
    await old.watch.look()
    assert [record.getMessage().partition(" in this Redis")[0] for record in caplog.records] == [
        f"Another release of fleet {FLEET} used keys of schema 1",
        f"Another release of fleet {FLEET} used keys of schema 2",
    ]
    first = caplog.records[0].getMessage()
    assert "20 s ago" in first and "This release uses schema 2" in first
    assert "no action is needed" in first


async def test_gateways_of_one_schema_report_nothing(
    redis: AsyncRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    one, other = Release(redis, 1), Release(redis, 1)
    await one.watch.look()
    await other.watch.look()
    assert not caplog.records


async def test_a_release_that_ended_is_not_reported_and_one_that_returns_is(
    redis: AsyncRedis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    old, new = Release(redis, 1), Release(redis, 2)
    await old.watch.look()
    new.now += IN_USE_S + 1
    await new.watch.look()
    assert not caplog.records
    old.now = new.now
    await old.watch.look()
    caplog.clear()
    await new.watch.look()
    assert len(caplog.records) == 1


async def test_a_schema_expires_when_no_gateway_uses_it(redis: AsyncRedis) -> None:
    await Release(redis, 1).watch.look()
    assert 0 < await redis.ttl(redis_keys.schemas_key(FLEET)) <= EXPIRE_S


@given(st.dictionaries(st.text(max_size=14), st.text(max_size=14)))
def test_invalid_fields_of_the_release_registry_are_ignored(found: dict[str, str]) -> None:
    own = {"1": str(int(NOW)), "2": str(int(NOW)), "3": str(int(NOW - IN_USE_S - 1))}
    assert others_in_use({**found, **own}, own=1, now=NOW) == {2: 0.0} | {
        schema: age for schema, age in others_in_use(found, own=1, now=NOW).items() if schema > 3
    }


@pytest.mark.parametrize(
    "found", [{"x": "1"}, {"2": "soon"}, {"2": "-1"}, {"²": "1800000000"}, {"2": "1" * 5000}]
)
def test_a_value_that_no_gateway_wrote_is_not_reported(found: dict[str, str]) -> None:
    assert others_in_use(found, own=1, now=NOW) == {}


async def test_a_gateway_logs_that_another_release_uses_its_redis(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")
    other = redis_keys.SCHEMA + 1
    with control(server) as client:
        client.hset(redis_keys.schemas_key(REDIS_NAME), str(other), int(time.time()))
    async with gateway_before(FakeEngine(), redis_url=server.url) as front:
        async with front.post() as answer:
            assert answer.status == 200
        await until(lambda: f"keys of schema {other}" in caplog.text)
