"""What a gateway learns of its engines: their own time alone, without other delays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from tests.deployments.gateway.admitting import BATCH, BUSY, FREE, SLO, recorded_explanations
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

BODY = b'{"model": "small", "prompt": "hello"'


@dataclass
class Seen:
    """The requests and reports of a scheduler; `explained` are the explanations."""

    learned: list[float]
    asked: list[SchedulingRequest]
    explained: list[dict[str, Any]]

    async def told(self) -> dict[str, Any]:
        await until(lambda: self.explained)
        return self.explained[-1]


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def other() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
async def front(engine: FakeEngine, other: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(engine, other, pool={"slo": SLO}) as front:
        yield front


@pytest.fixture
def seen(front: Front) -> Iterator[Seen]:
    scheduler = front.pool.scheduler
    with recorded_explanations(front) as explanations:
        seen = Seen([], [], explanations)

        def observed(attempt: Attempt, ttft_s: float) -> None:
            seen.learned.append(ttft_s)
            PoolScheduler.observed(scheduler, attempt, ttft_s)

        def decide(request: SchedulingRequest, considered: Any) -> Any:
            seen.asked.append(request)
            return PoolScheduler.decide(scheduler, request, considered)

        with (
            patch.object(scheduler, "observed", observed),
            patch.object(scheduler, "decide", decide),
        ):
            yield seen


async def test_nothing_is_learned_from_the_time_in_the_queue(
    front: Front, seen: Seen, engine: FakeEngine, other: FakeEngine
) -> None:
    now = asyncio.get_running_loop().time
    front.sees_queues({engine: BUSY, other: BUSY})
    asked = asyncio.ensure_future(_served(front, BATCH))
    await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
    since = now()
    await asyncio.sleep(0.1)
    freed_at = now()
    front.sees_queues({engine: FREE, other: BUSY})
    await asked
    until_s = now() - freed_at
    told = await seen.told()
    (learned,) = seen.learned
    assert learned <= until_s
    assert told["ttft_s"]["engine"] == learned
    assert told["phases"]["queued_s"] >= freed_at - since
    assert told["ttft_s"]["observed"] >= learned + told["phases"]["queued_s"]


async def test_a_slow_upload_does_not_affect_predictions_or_the_slo(
    front: Front, seen: Seen
) -> None:
    now = asyncio.get_running_loop().time
    sent_at: list[float] = []

    async def slowly() -> AsyncIterator[bytes]:
        yield BODY
        await asyncio.sleep(0.1)
        sent_at.append(now())
        yield b"}"

    began = now()
    headers = {**front.headers, "content-type": "application/json"}
    async with front.http.post(
        front.url + "/v1/completions", data=slowly(), headers=headers
    ) as answer:
        assert answer.status == 200
        ttft_s = float(answer.headers["x-antefix-ttft-ms"]) / 1000
    ended = now()
    told = await seen.told()
    (asked,), (learned,) = seen.asked, seen.learned
    assert asked.arrived >= sent_at[0]
    assert learned <= ttft_s <= ended - sent_at[0]
    assert 0 < told["phases"]["upload_s"] <= ended - began


async def test_nothing_is_learned_from_a_second_attempt(
    front: Front, seen: Seen, engine: FakeEngine
) -> None:
    engine.dies_after = 0
    await _served(front)
    told = await seen.told()
    assert told["replica"] == "r1"
    assert not seen.learned
    assert told["phases"]["retry_s"] > 0
    assert told["ttft_s"]["observed"] >= told["ttft_s"]["engine"] + told["phases"]["retry_s"]


async def test_a_request_forwarded_to_a_different_replica_teaches_the_gateway_nothing(
    front: Front, seen: Seen, engine: FakeEngine, other: FakeEngine
) -> None:
    engine.tickets.limit = 0
    front.handle.must_pick = other
    await _served(front)
    assert (await seen.told())["replica"] == "r1"
    assert not seen.learned


async def test_nothing_is_learned_from_a_request_without_a_prediction(
    front: Front, seen: Seen
) -> None:
    scheduler = front.pool.scheduler
    with patch.object(scheduler.board, "loads", dict):
        await _served(front)
    assert (await seen.told())["policy"] == "blind"
    assert scheduler.correction.error is None


async def test_each_part_of_the_time_to_first_token_is_counted_apart(
    front: Front, seen: Seen
) -> None:
    await _served(front)
    await seen.told()
    metrics = await front.metrics()
    for phase in ("upload", "read", "engine"):
        assert metrics["antefix_ttft_phase_seconds_count", phase] == 1, phase
    for phase in ("queued", "promotion", "retry"):
        assert metrics["antefix_ttft_phase_seconds_count", phase] == 0, phase
    told = (await seen.told())["phases"]
    assert metrics["antefix_ttft_phase_seconds_sum", "engine"] == pytest.approx(told["engine_s"])


async def _served(front: Front, headers: dict[str, str] | None = None) -> None:
    async with front.post(headers=headers) as answer:
        assert answer.status == 200
        await answer.read()
