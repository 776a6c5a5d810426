"""No gateway trusts a writer to Redis that lacks the fleet's secret."""

import json
import re
from pathlib import Path

import aiohttp
import msgspec
import pytest
import redis
from redis.exceptions import NoPermissionError

from router.index import slots
from router.redis.lease_signature import LeaseSigner
from router.redis.redis_client import connect
from router.redis.signature import Signer
from tests.fakes.engine import SECRET, FakeEngine
from tests.fakes.front import FLEET, POOL, REDIS_NAME, Front, gateway_before
from tests.router.redis_process import RedisProcess
from tests.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
# Ahead of every other: nothing waits there.
FORGERS = "a forger's", "a forger's incarnation"


async def forge(redis_url: str, forged: FakeEngine, signer: LeaseSigner | None) -> int:
    """A lease that names the forger's server; its slot."""
    client = connect(redis_url)
    slot = await slots.claim(client, POOL, FORGERS[1])
    lease = msgspec.structs.replace(
        forged.load(), replica_id=FORGERS[0], slot=slot, incarnation=FORGERS[1], started_at=-1.0
    ).to_json()
    text = lease if signer is None else signer.signed(slot, lease)
    assert await slots.renew(client, POOL, slot, FORGERS[1], text)
    await client.aclose()
    return slot


SIGNERS = {
    "nobody": None,
    "another fleet": LeaseSigner(Signer("another fleet's secret"), POOL),
    "another pool's replica": LeaseSigner(Signer(SECRET), f"{REDIS_NAME}/other"),
}


async def completes(front: Front) -> str:
    async with front.post() as answer:
        assert answer.status == 200, await answer.text()
        await answer.read()
        return str(answer.headers["x-antefix-replica"])


@pytest.mark.parametrize("signer", SIGNERS.values(), ids=SIGNERS)
async def test_a_lease_that_the_fleet_did_not_sign_gets_no_prompt(
    redis_url: str, signer: LeaseSigner | None
) -> None:
    forged = FakeEngine("r9")
    await forged.start()
    async with gateway_before(FakeEngine("r0"), redis_url=redis_url) as front:
        await forge(redis_url, forged, signer)
        await until(lambda: front.pool.feeds.loads.forged)
        assert [await completes(front) for _ in range(4)] == ["r0"] * 4
        assert not forged.headers
        metrics = await front.metrics()
        assert metrics["antefix_leases_forged",] == 1
    await forged.stop()


async def test_a_lease_that_the_fleet_signed_gets_requests(redis_url: str) -> None:
    """So the test above would fail without the signature."""
    forged = FakeEngine("r9")
    await forged.start()
    async with gateway_before(FakeEngine("r0"), redis_url=redis_url) as front:
        await forge(redis_url, forged, LeaseSigner(Signer(SECRET), POOL))
        await until(lambda: FORGERS[0] in front.pool.scheduler.board.loads())
    await forged.stop()


async def test_an_engine_does_not_receive_the_secret(redis_url: str) -> None:
    engine = FakeEngine("r0")
    async with gateway_before(engine, redis_url=redis_url) as front:
        await completes(front)
        assert engine.headers
        assert SECRET not in json.dumps(engine.headers)
        given = {name: engine.headers[0][name] for name in ("x-antefix-pass", "x-antefix-ticket")}
        other = FakeEngine("r1")
        await other.start()
        url = other.url + "/v1/models"
        async with aiohttp.ClientSession() as http, http.get(url, headers=given) as answer:
            assert answer.status == 403
        await other.stop()


async def test_the_redis_user_that_the_page_gives_a_fleet_suffices(server: RedisProcess) -> None:
    (command,) = re.findall("^ACL SETUSER prod .*$", PAGE.read_text(), re.MULTILINE)
    with redis.Redis.from_url(server.url) as root:
        root.flushall()
        root.execute_command(*command.replace("prod", FLEET).split())
        url = server.url.replace("redis://", f"redis://{FLEET}:PASSWORD@")
        async with gateway_before(FakeEngine("r0"), redis_url=url) as front:
            async with front.post() as answer:
                assert answer.status == 200
                await answer.read()
            assert (await front.explanation_of(answer.headers))["replica"] == "r0"
            assert front.pool.scheduler.board.is_read
        # redis-py offers what not every Redis has, and does without
        assert {entry["object"] for entry in root.acl_log()} <= {"client"}
        with redis.Redis.from_url(url) as own, pytest.raises(NoPermissionError):
            own.get(slots.slots_key("another"))
