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
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request import EngineRequest
from observability.request_record import RequestRecord
from router import redis_keys
from router.redis_client import AsyncRedis, connect
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


def asked(body: bytes = b"{}", tenant: str = "red") -> EngineRequest:
    record = RequestRecord("id", tenant, PATH, 0.0)
    return EngineRequest("id", tenant, PATH, body, None, "model", 0.0, 1e9, 60.0, record)


def of_a_gateway(redis: AsyncRedis, **times: Any) -> FatalRequests:
    return FatalRequests(redis, "fleet", "secret", **times)


def is_refused(known: FatalRequests, body: bytes = b"{}") -> bool:
    try:
        known.check(asked(body))
    except ApiError as error:
        assert error.code == "engines_lost"
        return True
    return False


async def test_another_gateway_learns_of_a_fatal_request_and_refuses_it_too(
    redis: AsyncRedis,
) -> None:
    one, other = of_a_gateway(redis), of_a_gateway(redis)
    one.add(asked(), 1)
    await one.exchange()
    assert not is_refused(other)
    await other.exchange()
    assert is_refused(other)


async def test_after_the_clock_is_set_back_it_is_refused_no_longer_than_from_when_it_was_heard_of(
    redis: AsyncRedis, clock: SimpleNamespace
) -> None:
    """Each time that it was over it was believed anew, until the clock was where it had been."""
    known, other = of_a_gateway(redis, kept_s=1), of_a_gateway(redis)
    known.add(asked(), 1)
    await known.exchange()
    await redis.persist(redis_keys.key("fleet", "fatal"))  # its clock is set back, too
    clock.ahead_s = -3600.0
    await until(lambda: not is_refused(known))
    for _ in range(2):
        await known.exchange()
        assert not is_refused(known)
    other.add(asked(), 1)
    await other.exchange()
    await known.exchange()
    assert is_refused(known), "another time counts"


async def test_a_tenant_whose_requests_are_lost_again_has_one_engine_for_each(
    redis: AsyncRedis,
) -> None:
    """A client that changes a byte each time took all the engines that there were."""
    one, other = of_a_gateway(redis, together_s=0.0), of_a_gateway(redis, together_s=0.0)
    one.add(asked(b"1"), 1)
    assert one.retries("red", 1) == 1
    await asyncio.sleep(0.01)
    one.add(asked(b"2"), 1)
    assert one.retries("red", 1) == 0
    assert one.retries("blue", 1) == 1
    await one.exchange()
    await other.exchange()
    assert other.retries("red", 1) == 0


async def test_requests_that_were_lost_together_are_not_suspected(redis: AsyncRedis) -> None:
    """One killed the engine, and the others were in it."""
    known = of_a_gateway(redis)
    for number in range(10):
        known.add(asked(b"%d" % number), 1)
    assert known.retries("red", 1) == 1


async def test_a_suspects_request_is_refused_from_its_second_loss_on(
    redis: AsyncRedis,
) -> None:
    known = of_a_gateway(redis, together_s=0.0)
    known.add(asked(b"1"), 1)
    await asyncio.sleep(0.01)
    known.add(asked(b"2"), 1)
    error = known.add(asked(b"3"), known.retries("red", 1))
    assert (error.status, error.code) == (503, "engines_lost")
    assert_sentences(error.message)
    assert not is_refused(known, b"3")
    known.add(asked(b"3"), known.retries("red", 1))
    assert is_refused(known, b"3")


async def test_a_suspect_is_none_any_more_after_minutes(
    redis: AsyncRedis,
) -> None:
    known = of_a_gateway(redis, kept_s=1, together_s=0.0)
    known.add(asked(b"1"), 1)
    await asyncio.sleep(0.01)
    known.add(asked(b"2"), 1)
    assert known.retries("red", 1) == 0
    await until(lambda: known.retries("red", 1) == 1)
