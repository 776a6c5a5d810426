"""Requests that two engines were lost with are refused for minutes, whatever clocks say."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from deployments.gateway import fatal_requests
from deployments.gateway.errors import ApiError
from deployments.gateway.fatal_requests import KEPT_S, FatalRequests
from deployments.gateway.request import EngineRequest
from observability.request_record import RequestRecord
from router import redis_keys
from router.redis_client import AsyncRedis, connect
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


def asked() -> EngineRequest:
    record = RequestRecord("id", "red", PATH, 0.0)
    return EngineRequest("id", "red", PATH, b"{}", None, "model", 0.0, 1e9, 60.0, record)


def of_a_gateway(redis: AsyncRedis) -> FatalRequests:
    return FatalRequests(redis, "fleet", "secret")


def is_refused(known: FatalRequests) -> bool:
    try:
        known.check(asked())
    except ApiError as error:
        assert error.code == "engines_lost"
        return True
    return False


async def test_another_gateway_hears_of_it_and_refuses_it_too(redis: AsyncRedis) -> None:
    one, other = of_a_gateway(redis), of_a_gateway(redis)
    one.add(asked())
    await one._keep_in_touch()
    assert not is_refused(other)
    await other._keep_in_touch()
    assert is_refused(other)


async def test_after_the_clock_is_set_back_it_is_refused_no_longer_than_from_when_it_was_heard_of(
    redis: AsyncRedis, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it was over it was believed anew, until the clock was where it had been."""
    monkeypatch.setattr(fatal_requests, "KEPT_S", 1)
    known = of_a_gateway(redis)
    known.add(asked())
    await known._keep_in_touch()
    await redis.persist(redis_keys.key("fleet", "fatal"))  # its clock is set back, too
    clock.ahead_s = -3600.0
    await until(lambda: not is_refused(known))
    for _ in range(2):
        await known._keep_in_touch()
        assert not is_refused(known)
    monkeypatch.setattr(fatal_requests, "KEPT_S", KEPT_S)
    known.add(asked())
    await known._keep_in_touch()
    assert is_refused(known), "another time counts"
