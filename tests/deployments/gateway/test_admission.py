"""Requests for a pool: admitted, queued, rejected; real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from deployments.gateway.inquiries.status import admission_status
from tests.deployments.gateway.admitting import (
    BATCH,
    BUSY,
    FREE,
    FULL,
    SLO,
    error_of,
    recorded_explanations,
    served_by,
)
from tests.fakes.engine import FakeEngine
from tests.fakes.front import OTHER_KEY, OTHER_TENANT, Front, gateway_before
from tests.waiting import until


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine("r0")


@pytest.fixture
def other() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
async def front(engine: FakeEngine, other: FakeEngine) -> AsyncIterator[Front]:
    """Without an overflow pool."""
    pool = {"slo": SLO, "batch_queue": 2}
    async with gateway_before(
        engine, other, pool=pool, tenants={OTHER_TENANT: {"priority": "batch"}}
    ) as front:
        yield front


async def test_a_request_goes_to_a_replica_that_meets_its_slo(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: BUSY})
    async with front.post() as answer:
        assert answer.status == 200
        assert answer.headers["x-antefix-replica"] == "r1"
        assert answer.headers["x-antefix-admission"] == "admitted"


async def test_a_rejected_request_gets_the_time_to_retry(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL + 1000})
    with recorded_explanations(front) as explanations:
        answer = await front.post()
        assert answer.status == 429
        assert 7 <= int(answer.headers["retry-after"]) <= 8
        error = await error_of(answer)
        assert (error["type"], error["code"]) == ("rate_limit_error", "over_capacity")
        assert error["message"].startswith(
            "The model is at capacity. The lowest predicted time to first token is 9.0 s, above the"
            " limit of 2 s for interactive requests. Try again in "
        )
    (told,) = explanations
    assert told["request_id"] == answer.headers["x-request-id"]
    assert told["admission"]["verdict"] == "rejected"
    assert {c["replica_id"] for c in told["candidates"]} == {"r0", "r1"}
    assert not engine.bodies and not other.bodies


async def test_a_refusal_counts_against_no_replica(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL})
    for _ in range(3):
        async with front.post() as answer:
            assert answer.status == 429
    assert all(load.queue.waiting == 0 for load in front.pool.scheduler.board.loads().values())
    metrics = await front.metrics()
    assert metrics["antefix_admissions_total", "interactive", "rejected"] == 3
    assert front.pool.scheduler.demand.rejected == front.pool.scheduler.demand.arrived == 3


async def test_an_idle_replica_admits_a_prompt_of_any_length(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FREE, other: FULL})
    async with front.post(messages=[{"role": "user", "content": "hi " * 300}] * 40) as answer:
        assert answer.status == 400  # the engine's own opinion of its length
    assert engine.bodies


async def test_without_known_replicas_every_request_is_admitted(
    front: Front, engine: FakeEngine
) -> None:
    front.sees()
    async with front.post() as answer:
        assert answer.status == 200


async def test_admission_fails_open_if_a_decision_raises(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: FULL, other: FULL})
    admission = front.pool.scheduler.admission
    with patch.object(admission, "decide", side_effect=ZeroDivisionError):
        assert await served_by(front) == "small"


async def test_a_request_is_not_rejected_after_a_failed_attempt(
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
    assert (await front.metrics())["antefix_batch_queued_requests",] == 1
    await until(lambda: front.pool.scheduler.demand.waiting == 1)
    front.sees_queues({engine: FREE, other: FULL})
    assert await waiting == "small"
    assert len(front.pool.scheduler.admission.queue) == 0
    assert (await front.metrics())["antefix_admissions_total", "batch", "queued"] == 1


async def test_an_interactive_request_overtakes_queued_batch_requests(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    waiting = asyncio.ensure_future(served_by(front, BATCH))
    await until(lambda: len(front.pool.scheduler.admission.queue) == 1)
    await served_by(front)
    assert not waiting.done()
    front.sees_queues({engine: FREE, other: FULL})
    await waiting


async def test_a_full_batch_queue_rejects_requests_with_429(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
    front.sees_queues({engine: BUSY, other: FULL})
    queue = front.pool.scheduler.admission.queue
    waiting = [asyncio.ensure_future(served_by(front, BATCH)) for _ in range(2)]
    await until(lambda: len(queue) == 2)
    async with front.post(headers=BATCH) as answer:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
    front.sees_queues({engine: FREE, other: FREE})
    await asyncio.gather(*waiting)


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind(
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


async def test_a_deadline_that_passes_in_the_queue_returns_an_error(
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


async def test_a_key_limits_the_priority_class(
    front: Front, engine: FakeEngine, other: FakeEngine
) -> None:
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
    assert metrics["antefix_admissions_total", "batch", "admitted"] == 1


@pytest.mark.parametrize(
    ("header", "words"),
    [("x-antefix-priority", "interactive, batch"), ("x-antefix-overflow", "never, allow, only")],
)
async def test_the_error_for_an_unknown_header_value_lists_the_valid_ones(
    front: Front, header: str, words: str
) -> None:
    async with front.post(headers={header: "urgent"}) as answer:
        assert answer.status == 400
        error = await error_of(answer)
        assert "'urgent'" in error["message"] and words in error["message"]


async def test_a_request_waits_while_no_replica_is_up(
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
