"""How many replicas take traffic, agreed on through a real Redis, one server or a cluster."""

import asyncio

import pytest

from router.board import active
from router.board.active import Active, ActiveWriter, active_key, parsed, read
from router.redis import redis_keys, signature
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from router.redis.signature import Signer, signed
from tests.router.index_redis import POOL, TOPOLOGIES, control
from tests.router.redis_process import RedisProcess

pytestmark = pytest.mark.usefixtures("redis_timeout")


@pytest.fixture(scope="module", params=TOPOLOGIES)
def topology(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_a_published_number_is_read(redis: AsyncRedis) -> None:
    assert await read(redis, POOL) is None
    assert await ActiveWriter(redis, POOL).publish(3, None) == Active(3)
    assert await read(redis, POOL) == Active(3)
    assert await ActiveWriter(redis, POOL).publish(2, Active(3)) == Active(2)
    assert await read(redis, POOL) == Active(2)


async def test_gateways_that_see_the_same_overload_promote_one(redis: AsyncRedis) -> None:
    await ActiveWriter(redis, POOL).publish(2, None)
    said = await asyncio.gather(*(ActiveWriter(redis, POOL).promote(Active(2)) for _ in range(12)))
    assert set(said) == {Active(3, 1)}
    assert await ActiveWriter(redis, POOL).promote(Active(3, 1)) == Active(4, 2)


async def test_a_promotion_is_not_overwritten_by_a_gateway_that_has_not_read_it(
    redis: AsyncRedis,
) -> None:
    await ActiveWriter(redis, POOL).publish(2, None)
    await ActiveWriter(redis, POOL).promote(Active(2))
    assert await ActiveWriter(redis, POOL).publish(1, Active(2)) == Active(3, 1)
    assert await ActiveWriter(redis, POOL).publish(3, Active(3, 1)) == Active(3)


async def test_a_gateway_that_has_read_a_number_writes_none_after_a_flush(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    await ActiveWriter(redis, POOL).publish(2, None)
    with control(server) as client:
        client.flushall()
    assert await ActiveWriter(redis, POOL).promote(Active(2)) is None
    assert await ActiveWriter(redis, POOL).publish(5, Active(2)) is None
    assert await read(redis, POOL) is None
    assert await ActiveWriter(redis, POOL).publish(5, None) == Active(5)


async def test_the_first_promotion_without_a_number_lets_two_replicas_serve(
    redis: AsyncRedis,
) -> None:
    await ActiveWriter(redis, POOL).publish(-1, None)
    assert await ActiveWriter(redis, POOL).promote(Active(0)) == Active(2, 2)


@pytest.mark.parametrize(
    "value", ["", "3", "-1 0", "1e3 0", "a b", "3 0 ", "3 0 7", "004 01", "9" * 99, b"\xff"]
)
async def test_an_unreadable_number_is_none_and_is_replaced(
    redis: AsyncRedis, server: RedisProcess, value: str | bytes
) -> None:
    with control(server) as client:
        client.set(active_key(POOL), value)
    assert await read(redis, POOL) is None
    assert await ActiveWriter(redis, POOL).promote(Active(3)) is None
    assert await ActiveWriter(redis, POOL).publish(1, None) == Active(1)
    assert await read(redis, POOL) == Active(1)


async def test_a_key_of_another_type_is_none_and_is_replaced(
    redis: AsyncRedis, server: RedisProcess
) -> None:
    with control(server) as client:
        client.rpush(active_key(POOL), "1")
    assert await read(redis, POOL) is None
    assert await ActiveWriter(redis, POOL).publish(1, None) == Active(1)


async def test_each_pool_has_its_own_number_of_active_replicas(redis: AsyncRedis) -> None:
    await ActiveWriter(redis, POOL).publish(2, None)
    assert await read(redis, "fleet/other") is None


async def test_an_unreachable_redis_raises_a_redis_failure() -> None:
    redis = connect("redis://127.0.0.1:1/0")
    for call in (
        active.read(redis, POOL),
        ActiveWriter(redis, POOL).publish(1, None),
        ActiveWriter(redis, POOL).promote(Active(1)),
    ):
        with pytest.raises(REDIS_FAILURES):
            await call


def test_a_written_number_is_parsed_unchanged() -> None:
    assert parsed(str(Active(7, 2))) == Active(7, 2)


SIGNER = Signer("secret")
FORGED = {
    "unsigned": "1 0",
    "of another fleet": signed(Signer("another"), active_key(POOL), "1 0"),
    "of another pool": signed(SIGNER, active_key("fleet/other"), "1 0"),
    "of another key": signed(SIGNER, redis_keys.key(POOL, "settings"), "1 0"),
    "of another schema": signed(SIGNER, active_key(POOL).replace(":1:", ":2:"), "1 0"),
    "with another number": signed(SIGNER, active_key(POOL), "2 0")[:-3] + "1 0",
    "short": "1",
}


@pytest.mark.parametrize("value", FORGED.values(), ids=FORGED)
async def test_a_number_that_the_fleet_did_not_sign_is_none_and_is_replaced(
    redis: AsyncRedis, server: RedisProcess, value: str
) -> None:
    before, writer = signature.forged["active"], ActiveWriter(redis, POOL, SIGNER)
    assert await writer.publish(3, None) == Active(3)
    with control(server) as client:
        client.set(active_key(POOL), value)
    assert await read(redis, POOL, SIGNER) is None
    # who has seen a number may be older than what replaced it
    assert await writer.publish(2, Active(3)) is None
    assert await writer.promote(Active(3)) is None
    assert await writer.publish(2, None) == Active(2)
    assert await read(redis, POOL, SIGNER) == Active(2)
    assert signature.forged["active"] > before


async def test_gateways_agree_on_a_signed_number_as_on_an_unsigned_one(redis: AsyncRedis) -> None:
    writer = ActiveWriter(redis, POOL, SIGNER)
    await writer.publish(2, None)
    assert set(await asyncio.gather(*(writer.promote(Active(2)) for _ in range(12)))) == {
        Active(3, 1)
    }
    assert await writer.publish(1, Active(2)) == Active(3, 1)
    assert await writer.publish(1, Active(3, 1)) == Active(1)
