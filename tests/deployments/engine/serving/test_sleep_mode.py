"""A replica's engine sleeps while it is warm, and no request notices more than a wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from deployments.engine.serving.sleep_mode import SLEEP_AFTER_S, Sleeper
from tests.fakes.engine import MODEL, FakeEngine
from tests.waiting import cancelled, until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Engine:
    """What is done to it takes until `may_end` is set, and the action `fails` then fails."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.fails = ""

    async def sleep(self) -> None:
        await self._do("sleep")

    async def wake_up(self) -> None:
        await self._do("wake up")

    async def _do(self, what: str) -> None:
        self.did.append(what)
        await self.may_end.wait()
        if self.fails == what:
            raise RuntimeError(what)


class Replica:
    """A sleeper with everything around it in a test's hands."""

    def __init__(self) -> None:
        self.clock, self.engine = Clock(), Engine()
        self.takes_traffic: bool | None = False
        self.sleeper = Sleeper(self.engine, lambda: self.takes_traffic, self.clock)
        self.served = 0

    async def after(self, seconds: float) -> bool:
        """Whether it sleeps then."""
        await self.sleeper.step()
        self.clock.now += seconds
        await self.sleeper.step()
        return self.sleeper.asleep

    async def falls_asleep(self) -> None:
        assert await self.after(SLEEP_AFTER_S)

    async def serve(self) -> None:
        async with self.sleeper.awake():
            assert not self.sleeper.asleep
            self.served += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.sleeper.run(poll_s=0.01))
        try:
            yield
            assert not task.done()
        finally:
            await cancelled(task)


@pytest.fixture
async def replica() -> Replica:
    return Replica()


async def test_a_warm_replica_falls_asleep_after_a_while(replica: Replica) -> None:
    assert not await replica.after(SLEEP_AFTER_S - 1)
    assert await replica.after(1)
    assert replica.engine.did == ["sleep"]


@pytest.mark.parametrize("takes_traffic", [True, None])
async def test_an_engine_stays_awake_unless_its_replica_is_known_to_take_no_traffic(
    replica: Replica, takes_traffic: bool | None
) -> None:
    replica.takes_traffic = takes_traffic
    assert not await replica.after(10 * SLEEP_AFTER_S)


async def test_the_idle_time_restarts_when_a_replica_took_traffic_in_between(
    replica: Replica,
) -> None:
    await replica.after(SLEEP_AFTER_S - 1)
    replica.takes_traffic = True
    await replica.after(1)
    replica.takes_traffic = False
    assert not await replica.after(SLEEP_AFTER_S - 1)


async def test_an_engine_stays_awake_during_a_request_and_the_idle_time_starts_at_its_end(
    replica: Replica,
) -> None:
    async with replica.sleeper.awake():
        assert not await replica.after(10 * SLEEP_AFTER_S)
    assert not await replica.after(SLEEP_AFTER_S - 1)
    assert await replica.after(1)


async def test_an_engine_wakes_when_its_replica_takes_traffic_again(replica: Replica) -> None:
    await replica.falls_asleep()
    assert await replica.after(1000)
    replica.takes_traffic = None
    assert await replica.after(1000)
    replica.takes_traffic = True
    assert not await replica.after(1)
    assert replica.engine.did == ["sleep", "wake up"]


async def test_a_request_to_a_sleeping_replica_wakes_it_and_is_served(replica: Replica) -> None:
    await replica.falls_asleep()
    async with replica.running():
        requests = [asyncio.create_task(replica.serve()) for _ in range(5)]
        await until(lambda: replica.served == 5)
        await asyncio.gather(*requests)
    assert replica.engine.did == ["sleep", "wake up"]


async def test_a_request_that_comes_while_it_falls_asleep_is_served_after_waking(
    replica: Replica,
) -> None:
    replica.engine.may_end.clear()
    await replica.sleeper.step()
    replica.clock.now += SLEEP_AFTER_S
    async with replica.running():
        await until(lambda: replica.engine.did == ["sleep"])
        request = asyncio.create_task(replica.serve())
        await until(lambda: replica.sleeper.waiting == 1)
        await asyncio.sleep(0.03)
        assert replica.engine.did == ["sleep"] and not replica.served
        replica.engine.may_end.set()
        await request
    assert replica.engine.did == ["sleep", "wake up"]
    assert replica.sleeper.waiting == 0


async def test_a_client_that_leaves_while_waiting_does_not_wake_the_engine(
    replica: Replica,
) -> None:
    await replica.falls_asleep()
    request = asyncio.create_task(replica.serve())
    await until(lambda: replica.sleeper.waiting == 1)
    await cancelled(request)
    async with replica.running():
        await asyncio.sleep(0.03)
    assert replica.engine.did == ["sleep"]
    replica.takes_traffic = True
    assert not await replica.after(0)
    replica.takes_traffic = False
    await replica.falls_asleep()


async def test_waking_an_engine_is_retried_and_the_failure_is_reported(replica: Replica) -> None:
    await replica.falls_asleep()
    replica.engine.fails = "wake up"
    async with replica.running():
        request = asyncio.create_task(replica.serve())
        await until(lambda: len(replica.engine.did) > 2)
        assert replica.sleeper.failing and replica.sleeper.asleep
        replica.engine.fails = ""
        await request
    assert not replica.sleeper.failing


async def test_an_engine_that_cannot_fall_asleep_is_woken(replica: Replica) -> None:
    replica.engine.fails = "sleep"
    assert not await replica.after(SLEEP_AFTER_S)
    assert replica.engine.did == ["sleep", "wake up"]
    await replica.serve()


async def test_a_sleeping_engine_answers_metadata_requests_and_wakes_for_inference() -> None:
    clock = Clock()
    engine = FakeEngine(clock=clock)
    engine.takes_traffic, engine.wake_delay_s, engine.wake_failures = False, 0.05, 1
    await engine.start()
    task = asyncio.create_task(engine.sleeper.run(poll_s=0.01))
    async with aiohttp.ClientSession(engine.url, headers=engine.access) as http:
        await asyncio.sleep(0.03)
        clock.now += SLEEP_AFTER_S
        await until(lambda: engine.sleeps)
        assert engine.load().asleep
        async with http.get("/v1/models") as answer:
            assert answer.status == 200 and engine.sleeps
        body = {"model": MODEL, "prompt": "a b c", "stream": True}
        async with http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200
            assert (await answer.text()).endswith("data: [DONE]\n\n")
        assert not engine.load().asleep
    await cancelled(task)
    await engine.stop()
