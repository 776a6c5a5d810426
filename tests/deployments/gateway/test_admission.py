"""Requests that come for a pool: let in, made to wait, sent elsewhere, refused; real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec
import pytest

from deployments.gateway.request import Prompt
from deployments.gateway.status import admission_status
from router.policies import PlacementRequest
from tests.fakes.engine import FakeEngine
from tests.fakes.front import OTHER_KEY, OTHER_TENANT, Front, gateway_before
from tests.sentences import assert_sentences
from tests.waiting import until

# Fake engines say that they compute 1000 tokens a second: a queue of 1000 is one second.
SLO = {"interactive": {"ttft_s": 2.0}, "batch": {"ttft_s": 60.0}}
OVERFLOW = {"to": "small", "enter": 1.0, "leave": 0.5, "max_share": 0.5}
BATCH = {"x-antefix-priority": "batch"}
FULL, BUSY, FREE = 9000, 1500, 0


def saying(overflow: str) -> dict[str, str]:
    return {"x-antefix-overflow": overflow}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def other() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
def small() -> FakeEngine:
    return FakeEngine("r9", model="tiny")


@pytest.fixture
async def front(engine: FakeEngine, other: FakeEngine) -> AsyncIterator[Front]:
    """Without an overflow pool."""
    pool = {"slo": SLO, "batch_queue": 2}
    async with gateway_before(
        engine, other, pool=pool, tenants={OTHER_TENANT: {"priority": "batch"}}
    ) as front:
        yield front


@pytest.fixture
async def overflowing(engine: FakeEngine, small: FakeEngine) -> AsyncIterator[Front]:
    pool = {
        "slo": SLO,
        "overflow": OVERFLOW,
        "engine_args": {"lora_modules": [{"name": "poet", "path": "/poet"}]},
    }
    async with gateway_before(engine, small=small, pool=pool) as front:
        yield front


@contextmanager
def explained(front: Front) -> Iterator[list[dict[str, Any]]]:
    """The explanations that are kept meanwhile; Redis, which would hold them, is not there."""
    kept: list[dict[str, Any]] = []

    def keep(tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        kept.append(msgspec.json.decode(msgspec.json.encode(explanation)))

    with patch.object(front.gateway._explanations, "keep", keep):
        yield kept


async def error_of(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    error: dict[str, Any] = (await answer.json())["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert_sentences(error["message"])
    return error


async def served_by(front: Front, headers: dict[str, str] | None = None, **body: Any) -> str:
    """The model in the body of an answer, which its header names too."""
    async with front.post(headers=headers, **body) as answer:
        fields = await answer.json()
        assert answer.status == 200, fields
        assert answer.headers["x-antefix-model"] == fields["model"]
        return str(fields["model"])


async def test_a_request_goes_where_its_slo_is_held(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: BUSY})
    async with front.post() as answer:
        assert answer.status == 200
        assert answer.headers["x-antefix-replica"] == "r1"
        assert answer.headers["x-antefix-admission"] == "admitted"


async def test_what_cannot_be_held_is_told_when_to_come_back(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL + 1000})
    with explained(front) as explanations:
        answer = await front.post()
        assert answer.status == 429
        assert 7 <= int(answer.headers["retry-after"]) <= 8
        error = await error_of(answer)
        assert (error["type"], error["code"]) == ("rate_limit_error", "over_capacity")
        assert "within 2 s" in error["message"] and "in 9.0 s" in error["message"]
    (told,) = explanations
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["admission"]["verdict"] == "refused"
    assert {c["replica_id"] for c in told["candidates"]} == {"r0", "r1"}
    assert not engine.bodies and not other.bodies


async def test_a_refusal_counts_against_no_replica(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL})
    for _ in range(3):
        async with front.post() as answer:
            assert answer.status == 429
    assert all(load.waiting == 0 for load in front.pool.scheduler.board.loads().values())
    metrics = await front.metrics()
    assert metrics["antefix_admissions_total", "interactive", "reject"] == 3
    assert front.pool.scheduler.demand.refused == front.pool.scheduler.demand.arrived == 3


async def test_where_nobody_waits_a_prompt_of_any_length_is_let_in(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FREE, other: FULL})
    async with front.post(messages=[{"role": "user", "content": "hi " * 300}] * 40) as answer:
        assert answer.status == 400  # the engine's own opinion of its length
    assert engine.bodies


async def test_while_nothing_is_known_everything_is_let_in(
    front: Front, engine: FakeEngine
) -> None:
    front.sees()
    async with front.post() as answer:
        assert answer.status == 200


async def test_a_decision_that_fails_lets_the_request_in(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL})
    admission = front.pool.scheduler.admission
    with patch.object(admission, "decide", side_effect=ZeroDivisionError):
        assert await served_by(front) == "small"


async def test_a_failed_attempt_is_not_refused_afterwards(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    engine.dies_after = 0
    front.sees_queues({engine: FREE, other: FULL})
    async with front.post() as answer:
        assert answer.status == 200
        assert answer.headers["x-antefix-replica"] == "r1"


async def test_a_batch_request_waits_for_its_turn(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    waiting = asyncio.ensure_future(served_by(front, BATCH))
    await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
    assert not engine.bodies
    assert (await front.metrics())["antefix_batch_waiting_requests",] == 1
    await until(lambda: front.pool.scheduler.demand.waiting == 1)
    front.sees_queues({engine: FREE, other: FULL})
    assert await waiting == "small"
    assert len(front.pool.scheduler.admission.queue) == 0
    assert (await front.metrics())["antefix_admissions_total", "batch", "wait"] == 1


async def test_an_interactive_request_overtakes_those_who_wait(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    waiting = asyncio.ensure_future(served_by(front, BATCH))
    await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
    await served_by(front)
    assert not waiting.done()
    front.sees_queues({engine: FREE, other: FULL})
    await waiting


async def test_the_queue_is_bounded(front: Front, engine: FakeEngine, other: FakeEngine) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    queue = front.pool.scheduler.admission.queue
    waiting = [asyncio.ensure_future(served_by(front, BATCH)) for _ in range(2)]
    await until(lambda: len(queue) == 2)
    async with front.post(headers=BATCH) as answer:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
    front.sees_queues({engine: FREE, other: FREE})
    await asyncio.gather(*waiting)


async def test_who_leaves_while_waiting_leaves_nothing_behind(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    queue = front.pool.scheduler.admission.queue
    waiting = asyncio.ensure_future(served_by(front, BATCH))
    await until(lambda: len(queue) == 1)
    waiting.cancel()
    await until(lambda: len(queue) == 0)
    front.sees_queues({engine: FREE, other: FREE})
    await served_by(front, BATCH)
    await until(lambda: front.handle.slots_taken == 0)
    assert len(engine.bodies) + len(other.bodies) == 1


async def test_a_deadline_that_passes_while_waiting_is_told(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    async with front.post(headers={**BATCH, "x-antefix-timeout": "0.2"}) as answer:
        assert answer.status == 504
    assert len(front.pool.scheduler.admission.queue) == 0


async def test_the_flex_tier_is_batch(front: Front, engine: FakeEngine, other: FakeEngine) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    waiting = asyncio.ensure_future(served_by(front, service_tier="flex"))
    await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
    front.sees_queues({engine: FREE, other: FULL})
    await waiting
    await served_by(front, service_tier="default")


async def test_a_key_bounds_the_class(front: Front, engine: FakeEngine, other: FakeEngine) -> None:
    bearer = {"authorization": f"Bearer {OTHER_KEY}"}
    for asked, param in (
        ({"headers": {**bearer, "x-antefix-priority": "interactive"}}, "x-antefix-priority"),
        ({"headers": bearer, "service_tier": "priority"}, "service_tier"),
    ):
        async with front.post(**asked) as answer:
            assert answer.status == 403
            error = await error_of(answer)
            assert (error["type"], error["param"]) == ("permission_error", param)
    front.sees_queues({engine: FREE, other: FULL})
    async with front.post(headers=bearer) as answer:
        assert answer.status == 200
    metrics = await front.metrics()
    assert metrics["antefix_admissions_total", "batch", "admit"] == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [("x-antefix-priority", "interactive, batch"), ("x-antefix-overflow", "never, allow, only")],
)
async def test_a_word_that_is_none_is_refused_with_those_there_are(
    front: Front, header: str, words: str
) -> None:
    async with front.post(headers={header: "urgent"}) as answer:
        assert answer.status == 400
        error = await error_of(answer)
        assert "'urgent'" in error["message"] and words in error["message"]


async def test_what_cannot_be_held_overflows_and_says_so(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    with explained(overflowing) as explanations:
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
    assert metrics["antefix_admissions_total", "interactive", "overflow"] == 1
    assert overflowing.pool.scheduler.demand.overflowed == 1


async def test_many_at_once_do_not_all_overflow_because_nobody_waits_there_yet(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    """Each is read between the decision, when nobody is there, and the place that it takes."""
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
        explained(overflowing) as explanations,
    ):
        posts = [asyncio.ensure_future(overflowing.post(messages=messages)) for _ in range(60)]
        await until(lambda: reading + sum(post.done() for post in posts) == 60)
        all_decided.set()
        await until(lambda: overflowing.pool.scheduler.demand.arrived == 60)
        small.go_on.set()
        answers = await asyncio.gather(*posts)
    assert {answer.status for answer in answers} == {200, 429}
    refused = [answer for answer in answers if answer.status == 429]
    late = [answer for answer in refused if "meanwhile" in (await error_of(answer))["message"]]
    assert late
    assert all(1 <= int(answer.headers["retry-after"]) <= 7 for answer in late)
    told = {one["request_id"]: one["admission"] for one in explanations}
    for answer in refused:
        assert told[answer.headers["x-request-id"]]["verdict"] == "refused"
    served = len(answers) - len(refused)
    metrics = await overflowing.metrics()
    assert metrics["antefix_admissions_total", "interactive", "overflow"] == served
    assert metrics["antefix_admissions_total", "interactive", "reject"] == len(refused)
    demand = overflowing.pool.scheduler.demand
    assert (demand.arrived, demand.overflowed, demand.refused) == (60, served, len(refused))


async def test_one_that_is_too_long_for_the_other_model_is_refused_and_explained(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    """Only once it is read in that model's tokens: this prompt is longer there."""
    overflowing.sees_queues({engine: FULL})
    reader = overflowing.pools["small"].reader

    async def longer(*asked: Any) -> Prompt:
        return Prompt(PlacementRequest(5000), True, {}, 0.0, 0.0)

    with patch.object(reader, "read", longer), explained(overflowing) as explanations:
        answer = await overflowing.post()
    assert answer.status == 429
    # the backlog of its own pool, not a guess
    assert 7 <= int(answer.headers["retry-after"]) <= 8
    assert "context holds 1000" in (await error_of(answer))["message"]
    (told,) = explanations
    assert (told["pool"], told["admission"]["verdict"]) == ("main", "refused")
    assert not small.bodies
    demand = overflowing.pool.scheduler.demand
    assert (demand.arrived, demand.refused, demand.overflowed) == (1, 1, 0)
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


async def test_who_vetoes_overflow_is_refused_instead(
    overflowing: Front, engine: FakeEngine, small: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post(headers=saying("never")) as answer:
        assert answer.status == 429
    assert not small.bodies


async def test_who_demands_overflow_gets_it_however_free_the_pool_is(
    overflowing: Front, engine: FakeEngine
) -> None:
    overflowing.sees_queues({engine: FREE})
    assert [await served_by(overflowing, saying("only")) for _ in range(3)] == ["tiny"] * 3
    assert not engine.bodies


async def test_who_demands_what_is_not_there_is_told(
    front: Front, overflowing: Front, engine: FakeEngine
) -> None:
    async with front.post(headers=saying("only")) as answer:
        assert answer.status == 400
        assert "no overflow pool" in (await error_of(answer))["message"]
    async with overflowing.post(headers=saying("only"), tools=[{"type": "function"}]) as answer:
        assert answer.status == 400
        assert "does not call tools" in (await error_of(answer))["message"]


BEYOND: Mapping[str, tuple[dict[str, Any], str]] = {
    "context": ({"max_tokens": 2000}, "context holds 1000"),
    "tools": ({"tools": [{"type": "function"}]}, "does not call tools"),
    "logprobs": ({"logprobs": True, "top_logprobs": 21}, "gives at most 20"),
    "token ids": ({"logit_bias": {"5": 1}}, "token ids"),
    "images": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "does not read images",
    ),
    "adapter": ({"model": "poet"}, "'poet'"),
}


@pytest.mark.parametrize("need", BEYOND)
async def test_what_the_small_model_cannot_do_is_refused_instead(
    overflowing: Front, engine: FakeEngine, small: FakeEngine, need: str
) -> None:
    body, said = BEYOND[need]
    overflowing.sees_queues({engine: FULL})
    async with overflowing.post(**body) as answer:
        assert answer.status == 429
        assert said in (await error_of(answer))["message"]
    assert not small.bodies


async def test_when_both_are_full_it_is_refused(
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


async def test_while_no_replica_is_up_a_request_is_held_for_one(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees()
    front.handle.may_pick.clear()
    held = asyncio.ensure_future(served_by(front))
    await until(lambda: front.pool.scheduler.demand.waiting == 1)
    assert admission_status(front.pool)["held"] == 1
    front.handle.may_pick.set()
    assert await held == "small"
    assert front.pool.scheduler.unassigned == 0


async def test_while_no_replica_is_up_a_request_overflows(overflowing: Front) -> None:
    overflowing.sees()
    assert await served_by(overflowing) == "tiny"
