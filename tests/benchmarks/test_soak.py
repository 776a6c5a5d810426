"""The soak test's traffic through a real gateway: a planted leak is found, and without
one nothing is."""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from prometheus_client import start_http_server

from benchmarks.harness.fleets.fleet import BenchFleet
from benchmarks.harness.fleets.fleet_state import held_in_redis
from benchmarks.soak import run, watch
from benchmarks.soak.held_items import held_items
from benchmarks.soak.run import warm_up
from benchmarks.soak.slopes import HOUR_S
from benchmarks.soak.traffic import MixedTraffic
from benchmarks.soak.verdict import (
    BOUNDS_PER_HOUR,
    Watched,
    growing,
    least_found,
    left_over,
    watched,
)
from benchmarks.soak.watch import (
    HELD,
    OF_REQUESTS,
    REDIS_KEYS,
    TASKS,
    Figure,
    FleetWatch,
    Sample,
    of_redis,
)
from cli.gateway.stream_client import Endpoint
from cli.local import processes
from cli.local.home import FleetState, Home
from deployments.gateway.gateway import Gateway
from deployments.wire.engine_pass import EnginePasses
from observability.metrics.request_metrics import RequestMetrics
from observability.traces.request_record import AnswerEnd, RequestRecord
from router.index.slots import slots_key
from router.redis.redis_keys import key
from tests.fakes.engine import MODEL, SECRET, FakeEngine
from tests.fakes.front import KEY, Front, gateway_before
from tests.waiting import cancelled, until

# Seconds on the clock of the verdict: a cycle really takes the time of its requests.
CYCLE_S = 30.0
CYCLES, ASKED, BURST = 10, 16, 8
# One of N requests is lost.
LOST = 4


@asynccontextmanager
async def soak_samples() -> AsyncIterator[tuple[Front, list[tuple[float, Sample]]]]:
    """A gateway, and what it held after each cycle of traffic."""
    engines = FakeEngine("r0"), FakeEngine("r1")
    async with gateway_before(*engines, request_timeout_s=60.0) as front:

        def take(keys: dict[str, str]) -> None:
            front.accepts(keys)

        traffic = MixedTraffic(front.http, front.url, MODEL, KEY, take)
        samples = []
        for cycle in range(CYCLES):
            front.sees(*engines)
            traffic.change_keys()
            await asyncio.gather(traffic.burst(BURST), *(traffic.ask() for _ in range(ASKED)))
            await until(lambda: not any(engine.running for engine in engines), 60.0)
            samples.append((cycle * CYCLE_S, await settled_sample(front.gateway)))
        assert not traffic.told["hung"] and not traffic.told[500], traffic.told
        assert traffic.told[200] > CYCLES and traffic.told["left"], traffic.told
        yield front, samples


async def settled_sample(gateway: Gateway) -> Sample:
    """Once clients' connections have been seen to end: the fewest tasks of a while."""
    fewest = sampled(gateway)
    for _ in range(20):
        await asyncio.sleep(0.01)
        now = sampled(gateway)
        fewest = {figure: min(value, now.get(figure, 0.0)) for figure, value in fewest.items()}
    return fewest


def sampled(gateway: Gateway) -> Sample:
    gateway.refresh_metrics({})
    held = held_items(gateway).items()
    tasks = {Figure(TASKS, "gateways"): float(len(asyncio.all_tasks()))}
    return {**tasks, **{Figure(HELD, whose): float(count) for whose, count in held}}


def grown(samples: list[tuple[float, Sample]]) -> set[Figure]:
    return {one.figure for one in growing(watched(samples[3:], CYCLE_S))}


async def test_a_soak_test_ends_with_figures_and_goals(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one gateway without Ray, and in short cycles: the results depend on the cores."""
    for name, short_s in (("CYCLE_S", 1.0), ("PERIOD_S", 0.2), ("DRAIN_S", 0.5), ("IDLE_S", 0.1)):
        monkeypatch.setattr(run, name, short_s)
    home = Home(tmp_path)
    state = FleetState("no run", "soak.yaml", "", "127.0.0.1", 1, "", MODEL, 1.0, 0.0)
    home.save_state(replace(state, redis_url=redis_url))
    (tmp_path / "keys.json").write_text(json.dumps({"api_key": KEY, "engine_secret": SECRET}))
    monkeypatch.setattr(FleetWatch, "engines", lambda self: [])
    async with gateway_before(FakeEngine("r0"), FakeEngine("r1"), redis_url=redis_url) as front:
        following = asyncio.create_task(front.gateway.parts.keys.follow(home.keys_file, 0.1))
        server, thread = start_http_server(0, "127.0.0.1", front.gateway.parts.families.registry)
        metrics_url = f"http://127.0.0.1:{server.server_port}/metrics"
        endpoint, passes = Endpoint("gateway", front.url, front.headers), EnginePasses(SECRET)
        fleet = BenchFleet(endpoint, endpoint, MODEL, metrics_url, passes, home.folder)
        try:
            figures, goals = await run.measure(fleet, 16, lambda: held_items(front.gateway))
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
            await cancelled(following)
    assert figures["cycles_that_count"] == 7
    assert figures["answers"]["200"] > 0
    assert set(figures["growing"]) == set(BOUNDS_PER_HOUR)
    assert figures["watched"].keys() <= BOUNDS_PER_HOUR.keys()
    assert goals["left_over_leases"]["met"] and goals["requests_that_hang"]["met"]
    json.dumps([figures, goals])


async def test_a_gateway_without_a_leak_is_called_steady() -> None:
    async with soak_samples() as (front, samples):
        assert grown(samples) == set()
        told = await front.metrics()
        assert told["antefix_asyncio_tasks",] > 0
        assert held_items(front.gateway)["FairShare.had"] > 1
        # what must be empty is there at all, under the names that are asked for
        held = held_items(front.gateway)
        assert set(OF_REQUESTS) - {"Scope.leases"} <= held.keys()
        assert not left_over(samples[2][1], samples[-1][1], {})["held_for_requests"]


@pytest.mark.parametrize("leak", ["a record", "a task"])
async def test_a_planted_leak_is_found_by_its_name(
    leak: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, tasks, count = RequestMetrics.ended, [], Counter[str]()

    def loses_some(self: RequestMetrics, record: RequestRecord, end: AnswerEnd) -> None:
        ended(self, record, end)
        count["requests"] += 1
        if count["requests"] % LOST:
            return
        if leak == "a record":
            self.under_way[record] = None
        else:
            tasks.append(asyncio.ensure_future(asyncio.Event().wait()))

    monkeypatch.setattr(RequestMetrics, "ended", loses_some)
    async with soak_samples() as (_, samples):
        named = {"a record": Figure(HELD, "RequestMetrics.under_way")}
        assert grown(samples) == {named.get(leak, Figure(TASKS, "gateways"))}
        left = left_over(samples[2][1], samples[-1][1], {})
        assert left["held_for_requests" if leak == "a record" else "tasks"] > 0
        for task in tasks:
            task.cancel()


def test_each_process_of_the_fleet_is_watched() -> None:
    run_id = secrets.token_hex(8)
    command = [sys.executable, "-c", "print('ready', flush=True); input()"]
    with subprocess.Popen(
        command,
        env={**os.environ, **processes.marker(run_id)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = FleetWatch(run_id, None, "", dict).of_processes()
        process.communicate(b"\n")
    whose = {figure.whose for figure in found}
    (role,) = whose - {"all"}
    assert role.endswith(f" {process.pid}")
    assert found[Figure(watch.PROCESSES, "all")] == 1
    assert found[Figure(watch.MEMORY, role)] > 1
    assert found[Figure(watch.FILES, role)] >= 3
    assert found[Figure(watch.THREADS, role)] >= 1


def test_keys_in_redis_are_counted_by_kind(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        for number in range(3):
            client.set(key("soak/engine", f"s:{number}"), "")
        client.hset(key("soak", "requests:a%3Ab:7"), "id", "{}")
        client.hset(slots_key("soak/engine"), mapping={"0": "an owner", "1": "freed:123"})
        client.zadd(key("soak", "budgets:a/b:leases"), {"one": 1.0, "two": 2.0})
        found = of_redis(client)
        kinds = {of.whose: count for of, count in found.items() if of.unit == REDIS_KEYS}
        assert kinds == {"s": 3, "requests": 1, "slots": 1, "budgets": 1}
        assert held_in_redis(client) == {"slots": 1, "leases": 2}


def test_a_kind_of_keys_counts_as_zero_while_it_is_absent() -> None:
    def sample(number: int) -> Sample:
        return {Figure(REDIS_KEYS, "a"): 5.0} if number % 3 else {}

    (found,) = watched([(number * 5.0, sample(number)) for number in range(60)], CYCLE_S)
    assert found.slope.level == 5.0
    assert found.verdict != "GROWS"


def test_a_figure_that_ends_early_has_no_slope() -> None:
    stays, ends = Figure(watch.FILES, "stays"), Figure(watch.FILES, "ends")
    samples = [(i * 5.0, {stays: 9.0, **({ends: float(i)} if i < 30 else {})}) for i in range(60)]
    assert [one.figure for one in watched(samples, CYCLE_S)] == [stays]


def test_growth_below_the_detectable_bound_is_not_reported() -> None:
    figure = Figure(watch.MEMORY, "a process")
    bound = BOUNDS_PER_HOUR[watch.MEMORY]

    def grows(per_hour: float) -> bool:
        per_s = per_hour / HOUR_S
        (found,) = watched([(i * 5.0, {figure: i * 5.0 * per_s}) for i in range(400)], CYCLE_S)
        return found.verdict == "GROWS"

    assert grows(1.1 * bound)
    assert not grows(0.9 * bound)


def of_memory(values: Sequence[float], warm_up_s: float = 0.0, since: int = 0) -> Watched:
    """MB, one value each 5 s; it begins with the sample `since`."""
    figure, other = Figure(watch.MEMORY, "a process"), Figure(watch.MEMORY, "another")
    samples: list[tuple[float, Sample]] = [
        (i * 5.0, {other: 1.0, **({figure: value} if i >= since else {})})
        for i, value in enumerate(values)
    ]
    (found,) = [o for o in watched(samples, CYCLE_S, warm_up_s) if o.figure == figure]
    return found


def test_a_few_allocator_steps_are_not_a_leak() -> None:
    """A redis-server's memory was like this in the two minutes of a short soak test that count."""
    steps = [11.2 + 0.25 * (i // 5) for i in range(36)]
    assert of_memory(steps).slope.exceeds(BOUNDS_PER_HOUR[watch.MEMORY])
    assert of_memory(steps).verdict == "steady"
    assert least_found(watch.MEMORY, 120.0) == pytest.approx(120.0)
    # in an hour they are
    assert of_memory([11.2 + 0.25 * (i // 5) for i in range(720)]).verdict == "GROWS"


@pytest.mark.parametrize("seed", range(20))
def test_a_filling_cache_is_distinguished_from_a_leak_once_it_slows_down(seed: int) -> None:
    chance = random.Random(seed)
    noise = [chance.gauss(0.0, 0.5) for _ in range(180)]
    fills = [100.0 * (1.0 - math.exp(-i / 25)) + x for i, x in enumerate(noise)]
    leaks = [0.1 * i + x for i, x in enumerate(noise)]
    assert of_memory(fills).verdict == "fills"
    assert of_memory(leaks).verdict == "GROWS"
    both = [a + b for a, b in zip(fills, leaks, strict=True)]
    assert of_memory(both).verdict == "GROWS"


def test_a_short_soak_test_does_not_excuse_figures_that_may_be_filling() -> None:
    fills = [100.0 * (1.0 - math.exp(-i / 15)) for i in range(50)]
    assert of_memory(fills).halves is None
    assert of_memory(fills).verdict == "GROWS"


def test_a_process_that_began_later_has_a_separate_warm_up() -> None:
    grown = [50.0 * min(1.0, max(0, i - 40) / 30) for i in range(180)]
    assert of_memory(grown, warm_up_s=0.0).slope.per_hour > 0
    late = of_memory(grown, warm_up_s=200.0, since=40)
    assert late.verdict == "steady"
    assert late.slope.per_hour == 0.0
    assert late.seconds == pytest.approx(180 * 5.0 - 400.0, abs=5.0)


def test_the_warm_up_is_long_enough_for_caches_to_fill() -> None:
    assert warm_up(16) == 9
    assert warm_up(100) == 30


def test_figures_of_gateways_are_read_from_their_metrics() -> None:
    text = "# TYPE antefix_asyncio_tasks gauge\nantefix_asyncio_tasks 40.0\n"
    assert watch.of_exposition(text) == {
        Figure(TASKS, "gateways"): 40.0,
        Figure(watch.SERIES, "of the node"): 1.0,
    }


def test_a_removed_holder_counts_no_items() -> None:
    held = iter([{"Rooms.waiting": 3, "Rooms.gone": 1}, {"Rooms.waiting": 2}])
    looks = FleetWatch("no run", None, "", lambda: next(held))
    assert looks.of_gateways()[Figure(HELD, "Rooms.gone")] == 1
    assert looks.of_gateways() == {
        Figure(HELD, "Rooms.waiting"): 2,
        Figure(HELD, "Rooms.gone"): 0,
    }


def test_a_closed_connection_to_the_metrics_port_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        body = b"# TYPE antefix_asyncio_tasks gauge\nantefix_asyncio_tasks 7.0\n"

        def answer() -> None:
            server.accept()[0].close()
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                head = f"HTTP/1.0 200 OK\r\ncontent-length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)

        monkeypatch.setattr(watch, "SCRAPE_AGAIN_S", 0.01)
        thread = threading.Thread(target=answer)
        thread.start()
        assert FleetWatch("no run", None, url, dict).of_metrics()[Figure(TASKS, "gateways")] == 7.0
        thread.join()
