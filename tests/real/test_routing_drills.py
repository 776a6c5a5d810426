"""Faults of the index fail no request, and the index soon knows again what engines hold.

Each test runs traffic through a fault and counts: every request is answered, none waits for the
index beyond its budget, and the hit rate returns to what it was. With `-s` they print how long
that took.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

import aiohttp
import psutil
import pytest
from redis.asyncio import Redis

from cli.local import processes
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of
from tests.real.conftest import RunningFleet
from tests.real.conversations import Routed, ask, hit_ratio, text
from tests.real.test_streams_and_drains import eventually, status

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

BUDGET_MS = 50.0
# The budget is kept by a timer, and on a busy machine a timer is late. Without it a lookup would
# end by the timeout of connections, a second.
LATE_MS = 800.0
WITHIN_S = 60.0
PREFIXES = 4
CLIENTS = 2
# What is repaired meanwhile needs the cores, too.
PAUSE_S = 0.2


@dataclass
class Traffic:
    """Requests over a few long prefixes, one after the other, from a few clients."""

    fleet: RunningFleet
    name: str
    answers: list[Routed] = field(default_factory=list)
    cut: int = 0
    numbers: count[int] = field(default_factory=count)

    async def ask(self) -> Routed:
        """One request over a separate connection, to either gateway."""
        number = next(self.numbers)
        prompt = f"{text((self.name, number % PREFIXES), 300)} Request {number}."
        async with aiohttp.ClientSession(self.fleet.root, headers=self.fleet.headers) as http:
            answer = await ask(http, prompt, self.fleet.model)
        self.answers.append(answer)
        return answer

    async def client(self, may_be_cut: bool) -> None:
        while True:
            try:
                await self.ask()
            except aiohttp.ClientConnectionError:
                if not may_be_cut:
                    raise
                self.cut += 1
            await asyncio.sleep(PAUSE_S)

    async def hit_ratio(self) -> float:
        return hit_ratio([await self.ask() for _ in range(PREFIXES)])


@asynccontextmanager
async def through(
    fleet: RunningFleet, name: str, may_be_cut: bool = False
) -> AsyncIterator[Traffic]:
    """Traffic that starts with warm caches; on leaving, waits until they are as warm again."""
    traffic = Traffic(fleet, name)

    async def warm() -> bool:
        return await traffic.hit_ratio() == 1.0

    await eventually(warm, WITHIN_S)
    before = len(traffic.answers)
    clients = [asyncio.create_task(traffic.client(may_be_cut)) for _ in range(CLIENTS)]
    try:
        yield traffic
        healed_at = time.monotonic()
        assert not any(client.done() for client in clients), clients
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    await eventually(warm, WITHIN_S)
    took = time.monotonic() - healed_at
    during = traffic.answers[before:]
    print(
        f"\nchaos test: {name}: {len(during)} requests, hit rate {hit_ratio(during):.2f} meanwhile,"
        f" 1.00 again {took:.1f} s after it was over; the index cost at most"
        f" {max(answer.index_ms for answer in during):.0f} ms"
    )
    assert {answer.status for answer in during} == {200}
    # One stall of a process on busy cores delays one request of each client, and no more.
    late = [answer.index_ms for answer in during if answer.index_ms > BUDGET_MS + LATE_MS]
    assert len(late) <= CLIENTS, late


async def requests(traffic: Traffic, more: int) -> None:
    """Return when that many more requests have been answered."""
    until = len(traffic.answers) + more
    async with asyncio.timeout(WITHIN_S):
        while len(traffic.answers) < until:  # noqa: ASYNC110  # of tasks of the test's own
            await asyncio.sleep(0.05)


async def wait_until_index_is_complete(http: aiohttp.ClientSession) -> None:
    """Return when both replicas' bits are all in the index."""

    async def synced() -> bool:
        replicas = (await status(http))["replicas"]
        return len(replicas) == 2 and all(replica["synced"] for replica in replicas)

    await eventually(synced, WITHIN_S)


async def test_requests_succeed_when_redis_is_killed_and_restarts_empty(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "Redis killed, then started empty") as traffic:
        before = {replica["replica"] for replica in (await status(http))["replicas"]}
        fleet.redis.kill()
        await requests(traffic, 6)

        async def loads_are_unknown() -> bool:
            replicas = (await status(http))["replicas"]
            return {replica["role"] for replica in replicas} == {"unknown"}

        await eventually(loads_are_unknown, WITHIN_S)
        assert {replica["replica"] for replica in (await status(http))["replicas"]} == before
        fleet.redis.start()
        await wait_until_index_is_complete(http)


async def test_requests_succeed_while_redis_is_frozen(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "Redis frozen") as traffic:
        fleet.redis.signal(signal.SIGSTOP)
        await requests(traffic, 6)
        fleet.redis.signal(signal.SIGCONT)
        await wait_until_index_is_complete(http)
    told = fleet.antefix("logs", "--tail", "1000", "--component", "gateway").stdout
    assert re.search(r"prefix index of test\.\w+/engine does not answer", told)
    assert re.search(r"prefix index of test\.\w+/engine answers again", told)


async def test_requests_succeed_while_redis_is_slow(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "Redis slow") as traffic:
        async with Redis.from_url(fleet.redis.url) as redis:
            for _ in range(10):
                await redis.client_pause(250, all=True)
                await asyncio.sleep(0.3)
            await requests(traffic, 2)
        await wait_until_index_is_complete(http)


async def test_the_index_recovers_after_redis_is_flushed(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "Redis flushed") as traffic:
        async with Redis.from_url(fleet.redis.url) as redis:
            await redis.flushall()
        await requests(traffic, 4)
        await wait_until_index_is_complete(http)


async def test_the_index_recovers_after_a_reset_of_an_engines_cache(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "an engine's cache reset") as traffic:
        for replica in (await status(http))["replicas"]:
            await reset(replica["url"], fleet)
        await requests(traffic, 2)
    # what was in the index is of before: without traffic nothing may be left of it
    for replica in (await status(http))["replicas"]:
        await reset(replica["url"], fleet)
    await wait_until_index_is_complete(http)
    await asyncio.sleep(0.5)
    answer = await traffic.ask()
    assert (answer.predicted_cached, answer.cached) == (0, 0)


async def test_requests_succeed_after_a_gateway_is_killed(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with through(fleet, "a gateway killed", may_be_cut=True) as traffic:
        actors_of(fleet, GATEWAYS_APPLICATION)[0].kill()
        await requests(traffic, 4)
        assert traffic.cut <= CLIENTS  # what was under way in it

        async def restarted() -> bool:
            return len(actors_of(fleet, GATEWAYS_APPLICATION)) == 2

        await eventually(restarted, WITHIN_S, every_s=0.5)
        cut = traffic.cut
        await requests(traffic, 4)
        assert traffic.cut == cut


async def test_requests_succeed_while_the_ray_serve_controller_is_frozen(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    """While the page is open in three tabs and long prompts come."""
    (controller,) = processes_of(fleet, "ServeController")
    metrics = fleet.home.state().metrics_url  # type: ignore[union-attr]
    seen: Counter[tuple[str, int]] = Counter()

    async def again_and_again(path: str) -> None:
        while True:
            async with asyncio.timeout(WITHIN_S), http.get(path) as answer:
                await answer.read()
            seen[path, answer.status] += 1
            await asyncio.sleep(0.5)

    async def long_prompts() -> None:
        while True:
            async with asyncio.timeout(WITHIN_S):
                answer = await ask(http, text("long", 3000), fleet.model)  # some 20 kB
            seen["long", answer.status] += 1

    async def told_of() -> bool:
        logs = fleet.antefix("logs", "--tail", "1000", "--component", "gateway")
        return "failed to read from Ray Serve's controller what runs" in logs.stdout

    async def all_told() -> bool:
        return {path for path, _ in seen} == {"long", *asked}

    asked = ("/health/live", "/health/ready", "/v1/models", *["/antefix/status"] * 3, metrics)
    async with through(fleet, "Ray Serve's controller frozen") as traffic:
        controller.suspend()
        others = [asyncio.create_task(again_and_again(path)) for path in asked]
        others.append(asyncio.create_task(long_prompts()))
        try:
            await eventually(told_of, WITHIN_S, every_s=1)
            seen.clear()
            await requests(traffic, 4)
            await eventually(all_told, WITHIN_S)
            assert not any(other.done() for other in others), others
        finally:
            controller.resume()
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
    # longer than the model's 1024 tokens, or than anybody would wait for
    assert seen.keys() <= {("long", 400), ("long", 429), *((path, 200) for path in asked)}


async def test_the_slot_of_a_killed_replica_is_reused(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    before = {replica["replica"]: replica["slot"] for replica in (await status(http))["replicas"]}
    async with through(fleet, "a replica killed, its slot reused") as traffic:
        actors_of(fleet, application_of("engine"))[0].kill()  # no farewell: its bits stay behind

        async def replaced() -> bool:
            now = await status(http)
            alive = {replica["replica"] for replica in now["replicas"]}
            # `before` may still name one that an earlier test killed
            return len(alive) == 2 and not alive <= before.keys()

        await eventually(replaced, 240, every_s=1)
        await requests(traffic, 4)
    slots: dict[str, int] = {}

    async def is_seen() -> bool:
        """By the gateway that answers: the other one may have known of it earlier."""
        replicas = (await status(http))["replicas"]
        slots.update({r["replica"]: r["slot"] for r in replicas if r["replica"] not in before})
        return len(slots) == 1

    await eventually(is_seen, WITHIN_S)
    ((new, slot),) = slots.items()
    # the lowest that is free: earlier tests may have left one below
    assert slot <= max(before.values())
    # the new one is never taken to hold what the old one held
    served = [answer for answer in traffic.answers if answer.replica == new]
    assert all(answer.predicted_cached <= answer.cached for answer in served)


async def reset(url: str, fleet: RunningFleet) -> None:
    """Drop an engine's whole prefix cache, as soon as no request uses it."""

    async def done() -> bool:
        async with (
            aiohttp.ClientSession(url, headers=fleet.engine_headers(url)) as http,
            http.post("/reset_prefix_cache") as answer,
        ):
            return answer.status == 200

    await eventually(done, WITHIN_S)


def actors_of(fleet: RunningFleet, application: str) -> list[psutil.Process]:
    """The processes of an application's replicas."""
    return processes_of(fleet, f"ServeReplica:{application}:")


def processes_of(fleet: RunningFleet, title: str) -> list[psutil.Process]:
    state = fleet.home.state()
    assert state is not None
    return [p for p in processes.processes(state.run_id) if title in " ".join(p.cmdline())]
