"""Requests that two engines were lost with are refused for minutes, whatever clocks say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.gateway.checks import fatal_requests
from deployments.gateway.checks.fatal_requests import FatalRequests
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import EngineRequest
from observability.traces.request_record import RequestFacts, RequestRecord
from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis, connect
from tests.sentences import assert_sentences
from tests.waiting import until

PATH = "/v1/completions"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url, decode=False)
    yield client
    await client.aclose()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The machine's: `ahead_s` may be changed."""
    clock = SimpleNamespace(ahead_s=0.0)
    ours = SimpleNamespace(time=lambda: time.time() + clock.ahead_s)
    monkeypatch.setattr(fatal_requests, "time", ours)
    return clock


def engine_request(body: bytes = b"{}", tenant: str = "red") -> EngineRequest:
    record = RequestRecord(RequestFacts("id", tenant, PATH), 0.0)
    return EngineRequest("id", tenant, PATH, body, None, "model", 0.0, 1e9, 60.0, 60.0, record)


def of_a_gateway(redis: AsyncRedis, **times: Any) -> FatalRequests:
    return FatalRequests(redis, "fleet", "secret", **times)


def is_refused(known: FatalRequests, body: bytes = b"{}") -> bool:
    try:
        known.check(engine_request(body))
    except ApiError as error:
        assert error.code == "engines_lost"
        return True
    return False


async def test_a_second_gateway_learns_of_a_fatal_request_and_rejects_it(
    redis: AsyncRedis,
) -> None:
    one, other = of_a_gateway(redis), of_a_gateway(redis)
    one.add(engine_request(), 1)
    await one.exchange()
    assert not is_refused(other)
    await other.exchange()
    assert is_refused(other)


async def test_a_clock_set_back_does_not_prolong_the_rejection_of_a_fatal_request(
    redis: AsyncRedis, clock: SimpleNamespace
) -> None:
    """Otherwise an expired record is trusted again and again, until the clock is where it was."""
    known, other = of_a_gateway(redis, kept_s=1), of_a_gateway(redis)
    known.add(engine_request(), 1)
    await known.exchange()
    await redis.persist(redis_keys.key("fleet", "fatal"))  # its clock is set back, too
    clock.ahead_s = -3600.0
    await until(lambda: not is_refused(known))
    for _ in range(2):
        await known.exchange()
        assert not is_refused(known)
    other.add(engine_request(), 1)
    await other.exchange()
    await known.exchange()
    assert is_refused(known), "another time counts"


async def test_a_tenant_whose_requests_are_lost_again_gets_one_try_for_each(
    redis: AsyncRedis,
) -> None:
    """A client that changes a byte each time took all the engines that there were."""
    one, other = of_a_gateway(redis, together_s=0.0), of_a_gateway(redis, together_s=0.0)
    one.add(engine_request(b"1"), 1)
    assert one.retries("red", 1) == 1
    await asyncio.sleep(0.01)
    one.add(engine_request(b"2"), 1)
    assert one.retries("red", 1) == 0
    assert one.retries("blue", 1) == 1
    await one.exchange()
    await other.exchange()
    assert other.retries("red", 1) == 0


async def test_requests_that_were_lost_together_are_not_suspected(redis: AsyncRedis) -> None:
    """One killed the engine, and the others were in it."""
    known = of_a_gateway(redis)
    for number in range(10):
        known.add(engine_request(b"%d" % number), 1)
    assert known.retries("red", 1) == 1


async def test_a_suspected_tenants_request_is_rejected_after_its_second_loss(
    redis: AsyncRedis,
) -> None:
    known = of_a_gateway(redis, together_s=0.0)
    known.add(engine_request(b"1"), 1)
    await asyncio.sleep(0.01)
    known.add(engine_request(b"2"), 1)
    error = known.add(engine_request(b"3"), known.retries("red", 1))
    assert (error.status, error.code) == (503, "engines_lost")
    assert_sentences(error.message)
    assert not is_refused(known, b"3")
    known.add(engine_request(b"3"), known.retries("red", 1))
    assert is_refused(known, b"3")


async def test_the_suspicion_of_a_tenant_expires_after_minutes(
    redis: AsyncRedis,
) -> None:
    known = of_a_gateway(redis, kept_s=1, together_s=0.0)
    known.add(engine_request(b"1"), 1)
    await asyncio.sleep(0.01)
    known.add(engine_request(b"2"), 1)
    assert known.retries("red", 1) == 0
    await until(lambda: known.retries("red", 1) == 1)


async def test_another_gateway_also_throttles_the_tenant_for_minutes(
    redis: AsyncRedis,
) -> None:
    one, other = of_a_gateway(redis, kept_s=2), of_a_gateway(redis, kept_s=2)
    one.fate_of(engine_request(), 1).out_of_memory("r0")
    await one.exchange()
    await other.exchange()
    assert one.is_held("red") and other.is_held("red")
    assert not one.is_held("blue") and not other.is_held("blue")
    await until(lambda: not one.is_held("red") and not other.is_held("red"))


async def test_a_request_at_another_gateway_clears_the_tenant_of_its_suspicion(
    redis: AsyncRedis,
) -> None:
    one, other = of_a_gateway(redis), of_a_gateway(redis)
    one.fate_of(engine_request(), 1).out_of_memory("r0")
    other.fate_of(engine_request(tenant="blue"), 1).lost("r0")
    assert one.is_held("red")
    await other.exchange()
    await one.exchange()
    assert not one.is_held("red")


async def test_at_most_two_of_the_requests_lost_with_one_replica_are_stored(
    redis: AsyncRedis,
) -> None:
    known = of_a_gateway(redis)
    for number in range(100):
        known.fate_of(engine_request(b"%d" % number), 1).lost("r0")
    await known.exchange()
    assert await redis.zcard(redis_keys.key("fleet", "fatal")) == 2
