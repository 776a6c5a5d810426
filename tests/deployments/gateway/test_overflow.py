"""Requests that another pool serves, may not have served, or is too full for; real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from deployments.gateway.inquiries.status import admission_status
from deployments.gateway.intake.request import Prompt
from router.choice.policies import PlacementRequest
from tests.deployments.gateway.admitting import (
    FREE,
    FULL,
    SLO,
    error_of,
    recorded_explanations,
    served_by,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

OVERFLOW = {"to": "small", "enter": 1.0, "leave": 0.5, "max_share": 0.5}


def overflow_header(overflow: str) -> dict[str, str]:
    return {"x-antefix-overflow": overflow}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def small() -> FakeEngine:
    return FakeEngine("r9", model="tiny")


@pytest.fixture
async def overflowing(engine: FakeEngine, small: FakeEngine) -> AsyncIterator[Front]:
    pool = {
        "slo": SLO,
        "overflow": OVERFLOW,
        "engine_args": {"lora_modules": [{"name": "poet", "path": "/poet"}]},
    }
    async with gateway_before(engine, small=small, pool=pool) as front:
        yield front


async def test_a_request_beyond_the_slo_overflows_and_reports_it(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    with recorded_explanations(overflowing) as explanations:
        answer = await overflowing.post(temperature=0.1234567890123)
        assert (await answer.json())["model"] == "tiny"
        assert answer.headers["x-antefix-model"] == "tiny"
        assert answer.headers["x-antefix-admission"] == "overflowed"
    (told,) = explanations
    assert told["pool"] == "small"
    assert told["admission"]["verdict"] == "overflowed"
    asked = json.loads(small.bodies[0])
    assert asked["temperature"] == 0.1234567890123
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    metrics = await overflowing.metrics()
    assert metrics["antefix_admissions_total", "interactive", "overflowed"] == 1
    assert overflowing.pool.scheduler.demand.overflowed == 1


async def test_many_requests_at_once_do_not_all_overflow_into_an_empty_queue(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    """Each is read between the decision, when the queue is empty, and the place that it takes."""
    for pool in overflowing.pools.values():  # a busy machine lets none of them come too late
        pool.scheduler._clock = partial(float, asyncio.get_running_loop().time())
    overflowing.sees_queues({engine: FULL})
    small.limit, small.pauses_after = 64, 0
    reader = overflowing.pools["small"].reader
    read, reading, all_decided = reader.read, 0, asyncio.Event()

    async def after_all_are_decided(*asked: Any) -> Prompt:
        nonlocal reading
        reading += 1
        await all_decided.wait()
        return await read(*asked)

    messages = [{"role": "user", "content": "w" * 900}]
    with (
        patch.object(reader, "read", after_all_are_decided),
        recorded_explanations(overflowing) as explanations,
    ):
        posts = [asyncio.ensure_future(overflowing.post(messages=messages)) for _ in range(60)]
        await until(lambda: reading + sum(post.done() for post in posts) == 60)
        all_decided.set()
        await until(lambda: overflowing.pool.scheduler.demand.arrived == 60)
        small.go_on.set()
        answers = await asyncio.gather(*posts)
    assert {answer.status for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer.status == 429]
    late = [answer for answer in refused if "meantime" in (await error_of(answer))["message"]]
    assert late
    assert all(1 <= int(answer.headers["retry-after"]) <= 7 for answer in late)
    told = {one["request_id"]: one["admission"] for one in explanations}
    for answer in refused:
        assert told[answer.headers["x-request-id"]]["verdict"] == "rejected"
    served = len(answers) - len(refused)
    metrics = await overflowing.metrics()
    assert metrics["antefix_admissions_total", "interactive", "overflowed"] == served
    assert metrics["antefix_admissions_total", "interactive", "rejected"] == len(refused)
    demand = overflowing.pool.scheduler.demand
    assert (demand.arrived, demand.overflowed, demand.rejected) == (60, served, len(refused))


async def test_a_prompt_too_long_for_the_overflow_model_is_rejected_and_explained(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    """Only once it is read in that model's tokens: this prompt is longer there."""
    overflowing.sees_queues({engine: FULL})
    reader = overflowing.pools["small"].reader

    async def longer(*asked: Any) -> Prompt:
        return Prompt(PlacementRequest(5000), True, {}, 0.0, 0.0)

    with patch.object(reader, "read", longer), recorded_explanations(overflowing) as explanations:
        answer = await overflowing.post()
    assert answer.status == 429
    # its own pool's backlog, not a guess
    assert 7 <= int(answer.headers["retry-after"]) <= 8
    assert "context holds 1,000" in (await error_of(answer))["message"]
    (told,) = explanations
    assert (told["pool"], told["admission"]["verdict"]) == ("main", "rejected")
    assert not small.bodies
    demand = overflowing.pool.scheduler.demand
    assert (demand.arrived, demand.rejected, demand.overflowed) == (1, 1, 0)
    assert overflowing.pools["small"].scheduler.demand.arrived == 0
    # nothing of the share is used up
    assert admission_status(overflowing.pool)["overflow_share"] == 0.0


async def test_a_stream_names_the_model_in_every_event(
    overflowing: Front, engine: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post(stream=True) as answer:
        assert answer.headers["x-antefix-model"] == "tiny"
        lines = [line for line in (await answer.text()).splitlines() if line.startswith("data: {")]
    assert {json.loads(line.removeprefix("data: "))["model"] for line in lines} == {"tiny"}


async def test_a_request_that_forbids_overflow_is_rejected_instead(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post(headers=overflow_header("never")) as answer:
        assert answer.status == 429
    assert not small.bodies


async def test_a_request_that_demands_overflow_gets_it_from_an_idle_pool_too(
    overflowing: Front, engine: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FREE})
    assert [await served_by(overflowing, overflow_header("only")) for _ in range(3)] == ["tiny"] * 3
    assert not engine.bodies


async def test_a_demand_for_an_impossible_overflow_returns_an_error(overflowing: Front) -> None:
    async with (
        gateway_before(FakeEngine("r1"), pool={"slo": SLO}) as alone,
        alone.post(headers=overflow_header("only")) as answer,
    ):
        assert answer.status == 400
        assert "no overflow model" in (await error_of(answer))["message"]
    async with overflowing.post(
        headers=overflow_header("only"), tools=[{"type": "function"}]
    ) as answer:
        assert answer.status == 400
        assert "does not support tools" in (await error_of(answer))["message"]


BEYOND: Mapping[str, tuple[dict[str, Any], str]] = {
    "context": ({"max_tokens": 2000}, "context holds 1,000"),
    "tools": ({"tools": [{"type": "function"}]}, "does not support tools"),
    "logprobs": ({"logprobs": True, "top_logprobs": 21}, "returns at most 20"),
    "token ids": ({"logit_bias": {"5": 1}}, "token ids"),
    "images": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "does not support images",
    ),
    "adapter": ({"model": "poet"}, "'poet'"),
}


@pytest.mark.parametrize("need", BEYOND)
async def test_a_request_that_the_small_model_cannot_serve_is_rejected_instead(
    overflowing: Front, engine: FakeEngine, small: FakeEngine, need: str
) -> None:
    body, said = BEYOND[need]
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post(**body) as answer:
        assert answer.status == 429
        assert said in (await error_of(answer))["message"]
    assert not small.bodies


async def test_a_request_is_rejected_when_both_pools_are_full(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    overflowing.sees_queues({small: FULL - 4000}, "small")
    async with overflowing.post() as answer:
        assert answer.status == 429
        assert 3 <= int(answer.headers["retry-after"]) <= 4


async def test_no_more_than_the_share_overflows(overflowing: Front, engine: FakeEngine) -> None:
    statuses = []
    for _ in range(20):
        overflowing.sees_queues({engine: FULL})
        async with overflowing.post() as answer:
            statuses.append(answer.status)
    assert 7 <= statuses.count(200) <= 10
    assert statuses.count(429) == 20 - statuses.count(200)


async def test_an_overflow_that_fails_is_tried_again_in_its_own_pool(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    small.dies_after = 0
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post() as answer:
        assert answer.status == 503
    assert len(small.bodies) == 2
    assert not engine.bodies


async def test_while_no_replica_is_up_a_request_overflows(overflowing: Front) -> None:
    overflowing.sees()
    assert await served_by(overflowing) == "tiny"
