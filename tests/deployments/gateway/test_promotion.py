"""Warm replicas and the spike that needs them, through real gateways and a real Redis."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest

from deployments.autoscaler import Watch
from deployments.gateway.pool.turns import TURN_PERIOD_S
from router.board import active
from router.board.active import Active, ActiveWriter
from router.redis.redis_client import connect
from router.redis.redis_keys import BoardName
from router.redis.signature import Signer
from tests.fakes.engine import SECRET, FakeEngine
from tests.fakes.front import POOL, Front, gateway_before
from tests.router.redis_process import RedisProcess
from tests.waiting import until

# Fake engines say that they compute 1000 tokens a second.
WARM = {"warm_replicas": 1, "slo": {"interactive": {"ttft_s": 2.0}}}
FULL = 9000
# For all requests of a test at once: who has none sends them where there is.
ROOM = 8


@pytest.fixture
def engines() -> tuple[FakeEngine, FakeEngine]:
    engines = FakeEngine("r0", ROOM), FakeEngine("r1", ROOM)
    for age, engine in enumerate(engines):
        engine.started_at = float(age)
    return engines


@pytest.fixture
async def front(engines: tuple[FakeEngine, FakeEngine], redis_url: str) -> AsyncIterator[Front]:
    """The first engine takes traffic, the second is warm."""
    async with gateway_before(*engines, redis_url=redis_url, pool=WARM) as front:
        redis = connect(redis_url)
        await ActiveWriter(redis, POOL, Signer(SECRET)).publish(1, None)
        await redis.aclose()
        await until(lambda: front.pool.scheduler.board.active_seen == Active(1))
        yield front


def is_full(front: Front, engine: FakeEngine) -> None:
    """The engine's replica is known to have a queue, which no snapshot takes back."""
    slot = front.pool.scheduler.board.loads()[engine.replica_id].slot
    front.pool.scheduler.board.placed("elsewhere", slot, FULL)


def _has_warm(front: Front, count: int) -> bool:
    return len(front.pool.scheduler.board.warm()) == count


async def answered_by(front: Front) -> str:
    async with front.post() as answer:
        assert answer.status == 200, await answer.text()
        return str(answer.headers["x-antefix-replica"])


async def test_a_warm_replica_takes_no_traffic(front: Front) -> None:
    assert {await answered_by(front) for _ in range(8)} == {"r0"}
    async with asyncio.timeout(60):
        while not (await front.metrics())["antefix_warm_idle_replica_seconds_total",]:  # noqa: ASYNC110  # each look is a request
            await asyncio.sleep(TURN_PERIOD_S)


async def test_the_request_that_needs_a_warm_replica_gets_it(
    front: Front, engines: tuple[FakeEngine, FakeEngine], redis_url: str
) -> None:
    is_full(front, engines[0])
    assert await answered_by(front) == "r1"
    metrics = await front.metrics()
    assert metrics["antefix_warm_promotions_total",] == 1
    assert metrics["antefix_warm_promotion_first_token_seconds_count",] == 1
    assert metrics["antefix_admissions_total", "interactive", "admitted"] == 1
    redis = connect(redis_url)
    assert await active.read(redis, POOL, Signer(SECRET)) == Active(2, promoted=1)
    await redis.aclose()


async def test_gateways_that_see_the_same_spike_promote_one_replica(
    front: Front, engines: tuple[FakeEngine, FakeEngine], redis_url: str
) -> None:
    third = FakeEngine("r2", ROOM)
    third.started_at = 2.0
    async with gateway_before(third, redis_url=redis_url, pool=WARM) as other:
        for of in (front, other):
            await until(partial(_has_warm, of, 2))
            is_full(of, engines[0])
        answers = await asyncio.gather(*(answered_by(of) for of in (front, other) * 4))
    assert set(answers) <= {"r1", "r2"}
    redis = connect(redis_url)
    seen = await active.read(redis, POOL, Signer(SECRET))
    await redis.aclose()
    assert seen is not None
    assert seen.count == 2


async def test_a_promotion_counts_as_demand(
    front: Front, engines: tuple[FakeEngine, FakeEngine], redis_url: str
) -> None:
    is_full(front, engines[0])
    await answered_by(front)
    watch = Watch(BoardName(POOL), redis_url, front.gateway.parts.in_force.fleet, Signer(SECRET))
    watch.keep()

    def demand() -> tuple[object, ...]:
        seen = watch.signals
        return (seen.promoted, seen.running, seen.arrived) if seen else ()

    # The promotion is reported at once, the request only in the gateway's next turn.
    await until(lambda: demand() == (1, 2, 1))
    watch.demand = 2
    await until(lambda: front.pool.scheduler.board.active_seen == Active(2, promoted=0))
    watch.demand = None  # it goes on for a while


async def test_a_dead_replica_is_replaced_by_the_warm_one(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    await front.published["r0"].stop()
    await until(lambda: front.pool.scheduler.board.loads().keys() == {"r1"})
    assert await answered_by(front) == "r1"


async def test_without_redis_the_existing_replicas_serve_the_spike(
    front: Front, engines: tuple[FakeEngine, FakeEngine], server: RedisProcess
) -> None:
    is_full(front, engines[0])
    server.process.send_signal(signal.SIGSTOP)
    try:
        async with front.post() as answer:
            assert answer.status in (200, 429)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert await answered_by(front) in ("r0", "r1")
