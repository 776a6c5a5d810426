"""A pool whose last replica is lost, before a real gateway and a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from autoscaling.admission import outage
from deployments.gateway.inquiries.status import admission_status
from deployments.gateway.pool import serve_controller
from deployments.gateway.pool.serve_controller import Replicas, Starting, replicas_of
from tests.deployments.gateway.admitting import BATCH, BUSY, SLO, error_of, served_by
from tests.fakes.engine import FakeEngine
from tests.fakes.front import POOL, Front, gateway_before
from tests.fakes.publishing import Publishing
from tests.ports import free_ports
from tests.router.redis_process import RedisProcess, running
from tests.waiting import until

# Longer than any test. A request has 600 s, and one with `SOON` a minute.
STARTUP_S = 500.0
OVERFLOW = {"to": "small", "max_share": 0.1}
SOON = {"x-antefix-timeout": "60"}


class Serve:
    """What Ray Serve says of the pool's replicas; None: nothing."""

    def __init__(self) -> None:
        self.main: Replicas | None = Replicas(1, {})

    def replicas(self) -> dict[str, Replicas]:
        others = {"small": Replicas(1, {})}
        return others if self.main is None else {**others, "main": self.main}

    def starts(self, placed: bool = False) -> None:
        self.main = Replicas(0, {"new": Starting(time.time(), placed)})


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    serve = Serve()
    monkeypatch.setattr(serve_controller, "ask_replicas", serve.replicas)
    monkeypatch.setattr(serve_controller, "FRESH_S", 0.1)
    # as if a lease's time passed at once: tests/autoscaling/admission/test_outage.py has it pass
    monkeypatch.setattr(outage, "LEASE_S", 0.0)
    return serve


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine("r0")
    engine.startup_s = STARTUP_S
    return engine


@pytest.fixture
def small() -> FakeEngine:
    return FakeEngine("r9", model="tiny")


@asynccontextmanager
async def lost(front: Front, serve: Serve) -> AsyncIterator[None]:
    """The pool's only replica is gone, and another one starts; at the end it is back."""
    await until(lambda: front.pool.starts.startup_s)
    front.handle.may_pick.clear()
    await front.published["r0"].stop()
    serve.starts()
    await until(lambda: front.pool.scheduler.outage)
    yield
    front.handle.may_pick.set()


async def comes_back(front: Front, serve: Serve, engine: FakeEngine, redis_url: str) -> None:
    serve.main = Replicas(1, {})
    front.published["r0"] = Publishing(engine, redis_url, POOL)
    front.published["r0"].start()
    await until(front.pool.scheduler.board.loads)
    front.handle.may_pick.set()


async def test_during_an_outage_all_requests_overflow_regardless_of_the_share(
    engine: FakeEngine, small: FakeEngine, serve: Serve, redis_url: str
) -> None:
    pool = {"slo": SLO, "overflow": OVERFLOW}
    async with (
        gateway_before(engine, small=small, redis_url=redis_url, pool=pool) as front,
        lost(front, serve),
    ):
        for _ in range(8):
            async with front.post() as answer:
                assert (await answer.json())["model"] == "tiny"
                assert answer.headers["x-antefix-admission"] == "overflowed"
        explained = await front.explanation_of(answer.headers)
        assert explained["admission"]["outage"] is True
        assert "no replica of the model is running" in explained["admission"]["reason"]
        metrics = await front.metrics()
        assert metrics["antefix_outage_admissions_total", "interactive", "overflowed"] == 8
        assert metrics["antefix_admissions_total", "interactive", "overflowed"] == 8
        assert metrics["antefix_overflow_share_ratio",] == 0
        assert metrics["antefix_outage",] == 1
        told = admission_status(front.pool)["outage"]
        assert told["up_in_s"] == STARTUP_S
        assert told["for_s"] > 0


async def test_a_request_that_cannot_wait_for_the_start_is_rejected_at_once(
    engine: FakeEngine, serve: Serve, redis_url: str
) -> None:
    async with gateway_before(engine, redis_url=redis_url) as front:
        async with lost(front, serve):
            answer = await front.post(headers=SOON)
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) == STARTUP_S
            error = await error_of(answer)
            assert error["code"] == "no_replica"
            assert "in 500 s" in error["message"]
            demand = front.pool.scheduler.demand
            assert (demand.arrived, demand.rejected) == (1, 1)
        await comes_back(front, serve, engine, redis_url)
        assert await served_by(front) == "small"
        assert (await front.metrics())["antefix_outage",] == 0
        assert admission_status(front.pool)["outage"] is None


async def test_a_request_with_enough_time_waits_for_the_replica_that_starts(
    engine: FakeEngine, serve: Serve, redis_url: str
) -> None:
    async with gateway_before(engine, redis_url=redis_url) as front:
        async with lost(front, serve):
            held = asyncio.ensure_future(served_by(front))
            await until(lambda: front.pool.scheduler.unassigned)
            await comes_back(front, serve, engine, redis_url)
            assert await held == "small"
        metrics = await front.metrics()
        assert metrics["antefix_outage_admissions_total", "interactive", "admitted"] == 1


async def test_a_start_that_is_under_way_is_nearly_over(
    engine: FakeEngine, serve: Serve, redis_url: str
) -> None:
    async with (
        gateway_before(engine, redis_url=redis_url) as front,
        lost(front, serve),
    ):
        assert serve.main is not None
        seen = admission_status(front.pool)["outage"]["up_in_s"]
        assert seen == STARTUP_S  # it has no place on a node yet
        serve.main = Replicas(0, {"early": Starting(time.time() - STARTUP_S + 40.0, True)})
        await until(lambda: admission_status(front.pool)["outage"]["up_in_s"] <= 40.0)
        held = asyncio.ensure_future(served_by(front, SOON))  # a minute is enough
        await until(lambda: front.pool.scheduler.unassigned)
        await comes_back(front, serve, engine, redis_url)
        assert await held == "small"


async def test_batch_requests_queue_during_an_outage(
    engine: FakeEngine, serve: Serve, redis_url: str
) -> None:
    pool = {"slo": SLO, "batch_queue": 2}
    async with (
        gateway_before(engine, redis_url=redis_url, pool=pool, request_timeout_s=600.0) as front,
        lost(front, serve),
    ):
        held = asyncio.ensure_future(served_by(front, BATCH))
        await until(lambda: front.pool.is_waited_for)
        assert front.pool.scheduler.unassigned == 0
        await comes_back(front, serve, engine, redis_url)
        assert await held == "small"


async def test_queued_requests_are_decided_again_when_the_last_replica_is_lost(
    engine: FakeEngine,
    small: FakeEngine,
    serve: Serve,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = {"slo": SLO, "batch_queue": 2, "overflow": OVERFLOW}
    monkeypatch.setattr(engine, "load", partial(engine.load, BUSY))
    async with gateway_before(engine, small=small, redis_url=redis_url, pool=pool) as front:
        held = asyncio.ensure_future(served_by(front, {**BATCH, **SOON}))
        await until(lambda: front.pool.is_waited_for)
        async with lost(front, serve):
            assert await held == "tiny"
        assert front.pool.scheduler.demand.arrived == 1


async def test_in_a_pool_scaled_to_zero_a_request_is_demand_and_there_is_no_outage(
    serve: Serve, redis_url: str
) -> None:
    pool = {
        "slo": {"interactive": {"ttft_s": 2.0}},
        "autoscaling": {"min_replicas": 0, "max_replicas": 1, "startup_s": 300.0},
    }
    async with gateway_before(FakeEngine("r0"), redis_url=redis_url, pool=pool) as front:
        front.handle.may_pick.clear()
        await front.published["r0"].stop()
        serve.main = Replicas(0, {})
        await until(lambda: front.pool.scheduler.outage)
        assert (await front.metrics())["antefix_outage",] == 0
        async with front.post(headers=SOON) as answer:
            assert (answer.status, answer.headers["retry-after"]) == (503, "300")
        assert front.pool.scheduler.demand.arrived == 1


@pytest.mark.parametrize("overflows", [True, False])
async def test_a_request_of_the_lost_last_replica_overflows_or_is_rejected(
    engine: FakeEngine, small: FakeEngine, serve: Serve, redis_url: str, overflows: bool
) -> None:
    """It was admitted, its engine died before it answered, and no other exists."""
    pool = {"slo": SLO, "overflow": OVERFLOW}
    saying = {**SOON, "x-antefix-overflow": "allow" if overflows else "never"}
    async with gateway_before(engine, small=small, redis_url=redis_url, pool=pool) as front:
        engine.pauses_after = 0
        held = asyncio.ensure_future(front.post(headers=saying))
        await until(lambda: engine.bodies)
        front.handle.may_pick.clear()
        engine.break_off()
        await until(lambda: front.pool.scheduler.unassigned)
        async with lost(front, serve), await held as answer:
            told = await answer.json()
        if overflows:
            assert (answer.status, told["model"]) == (200, "tiny")
            assert answer.headers["x-antefix-admission"] == "overflowed"
        else:
            assert (answer.status, told["error"]["code"]) == (503, "no_replica")
            assert int(answer.headers["retry-after"]) == STARTUP_S
        scheduler = front.pool.scheduler
        assert (scheduler.demand.arrived, scheduler.unassigned) == (1, 0)
        assert front.handle.slots_taken == 0


async def test_a_request_admitted_before_an_outage_may_wait_for_the_start(
    engine: FakeEngine, serve: Serve, redis_url: str
) -> None:
    async with gateway_before(engine, redis_url=redis_url) as front:
        engine.pauses_after = 0
        held = asyncio.ensure_future(served_by(front))
        await until(lambda: engine.bodies)
        engine.pauses_after = None
        front.handle.may_pick.clear()
        engine.break_off()
        async with lost(front, serve):
            await until(lambda: front.pool.scheduler.unassigned == 1)
            await comes_back(front, serve, engine, redis_url)
            assert await held == "small"
        metrics = await front.metrics()
        assert metrics["antefix_outage_admissions_total", "interactive", "admitted"] == 1


@pytest.mark.parametrize("known", ["nothing of a start", "a replica that runs", "no such pool"])
async def test_requests_queue_when_it_is_uncertain_that_no_replica_serves(
    engine: FakeEngine, serve: Serve, redis_url: str, known: str
) -> None:
    """A replica that cannot reach Redis, and one whose controller is unavailable, serve all the
    same."""
    if known == "nothing of a start":
        engine.startup_s = 0.0
    async with gateway_before(engine, redis_url=redis_url) as front:
        front.handle.may_pick.clear()
        await front.published["r0"].stop()
        if known == "nothing of a start":
            serve.starts()
        elif known == "no such pool":
            serve.main = None
        await until(lambda: front.pool.scheduler.board.empty_for_s > 0.0)
        asked = front.gateway.parts.controller.replicas
        before = asked.as_of
        await until(lambda: asked.as_of > before)
        await until(lambda: (known == "nothing of a start") == bool(front.pool.scheduler.outage))
        held = asyncio.ensure_future(served_by(front, SOON))
        if known == "nothing of a start":  # otherwise the last known one has it
            await until(lambda: front.pool.scheduler.unassigned)
        front.handle.may_pick.set()
        assert await held == "small"


async def test_losing_redis_or_its_data_is_not_an_outage(
    engine: FakeEngine, serve: Serve, tmp_path: Any
) -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}/0"

    def seen() -> bool:
        return front.pool.scheduler.outage is not None

    with running(tmp_path, port, f"port {port}\n") as redis:
        async with gateway_before(engine, redis_url=url) as front:
            await until(lambda: front.pool.starts.startup_s)
            forgets(redis, port)
            assert await served_by(front) == "small"
            assert not seen()
            redis.process.kill()
            await until(lambda: not front.pool.scheduler.board.is_read)
            serve.starts()  # whatever Ray Serve says
            assert not seen()
            assert await served_by(front) == "small"


def forgets(redis: RedisProcess, port: int) -> None:
    from redis import Redis

    with Redis(port=port) as client:
        client.flushall()


async def test_a_new_gateway_does_not_report_an_outage(serve: Serve) -> None:
    """It has read no board: there is no Redis."""
    serve.starts()
    async with gateway_before(FakeEngine()) as front:
        front.sees()
        front.goes_blind()
        assert await served_by(front) == "small"
        assert front.pool.scheduler.outage is None


def test_replicas_and_starts_are_read_from_ray_serve() -> None:
    said: list[dict[str, Any]] = [
        {"replica_id": "a", "state": "RUNNING", "start_time_s": 1.0, "pid": 1},
        {"replica_id": "b", "state": "UPDATING", "start_time_s": 1.0, "pid": 2},
        {"replica_id": "c", "state": "RECOVERING", "start_time_s": 1.0},
        {"replica_id": "d", "state": "STOPPING", "start_time_s": 1.0, "pid": 3},
        {"replica_id": "e", "state": "STARTING", "start_time_s": 5.0},
        {"replica_id": "f", "state": "STARTING", "start_time_s": 6.0, "pid": 4},
    ]
    told = Replicas(3, {"e": Starting(5.0, False), "f": Starting(6.0, True)})
    assert replicas_of(said) == told
