"""Streams, clients that leave, deadlines, replicas that die and replicas that are drained."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import yaml

from cli.local import processes
from deployments.fleet.applications import GATEWAYS_APPLICATION, application_of
from tests.fakes.front import samples_of
from tests.real.conftest import RunningFleet
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

STREAM_TOKENS = 600
# The tokens of an answer that is cut: nearly the whole context, so that it does not end by itself.
LONG = 960


async def eventually(
    condition: Callable[[], Awaitable[bool]], within_s: float, every_s: float = 0.1
) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < within_s, f"not within {within_s} s"
        await asyncio.sleep(every_s)
    return time.monotonic() - began


async def status(http: aiohttp.ClientSession, pool: str = "engine") -> dict[str, Any]:
    async with http.get("/antefix/status") as answer:
        pools: dict[str, dict[str, Any]] = (await answer.json())["pools"]
    return pools[pool]


async def requests_in_engines(http: aiohttp.ClientSession, pool: str = "engine") -> int:
    replicas = (await status(http, pool))["replicas"]
    return sum(replica["waiting"] + replica["running"] for replica in replicas)


async def all_idle(http: aiohttp.ClientSession, pool: str = "engine") -> None:
    async def idle() -> bool:
        return await requests_in_engines(http, pool) == 0

    await eventually(idle, within_s=120)


def slow_stream(fleet: RunningFleet, tokens: int) -> dict[str, Any]:
    """Of the whole model, each of whose tokens takes several times as long."""
    return {**long_stream(fleet, tokens), "model": fleet.other_model}


def long_stream(fleet: RunningFleet, tokens: int = STREAM_TOKENS) -> dict[str, Any]:
    return {
        "model": fleet.model,
        "prompt": "Tell me a long story.",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }


async def finish(http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, str]:
    """Tokens received, and how the stream ended."""
    async with http.post("/v1/completions", json={**body, "return_token_ids": True}) as answer:
        assert answer.status == 200, await answer.text()
        lines = (await answer.text()).strip().splitlines()
    said = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    choices = [choice for one in said for choice in one.get("choices", ())]
    # on a busy machine an event may have several
    return sum(len(choice["token_ids"] or ()) for choice in choices), lines[-1]


async def generated(http: aiohttp.ClientSession, fleet: RunningFleet) -> int:
    """Tokens that the engine of the whole model has generated since its start."""
    (replica,) = (await status(http, "other"))["replicas"]
    headers = fleet.engine_headers(replica["url"])
    async with http.get(f"{replica['url']}/metrics", headers=headers) as answer:
        samples = samples_of(await answer.text())
    return round(sum(n for key, n in samples.items() if key[0] == "vllm:generation_tokens_total"))


@asynccontextmanager
async def shortened_answers(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> AsyncIterator[None]:
    """The engine of the whole model generates fewer than `LONG` tokens meanwhile."""
    await all_idle(http, "other")
    before = await generated(http, fleet)
    yield
    await all_idle(http, "other")
    assert await generated(http, fleet) - before < LONG


async def test_the_first_token_leaves_before_the_last_is_generated(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async with (
        shortened_answers(http, fleet),
        http.post("/v1/completions", json=slow_stream(fleet, LONG)) as answer,
    ):
        await answer.content.readuntil(b"\n\n")
        answer.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_slot_before_the_answer_would_end(
    http: aiohttp.ClientSession, fleet: RunningFleet, stream: bool
) -> None:
    body = {**slow_stream(fleet, LONG), "stream": stream}

    async def taken() -> bool:
        return await requests_in_engines(http, "other") == 1

    async with shortened_answers(http, fleet):
        request = asyncio.create_task(http.post("/v1/completions", json=body).__aenter__())
        await eventually(taken, within_s=120)
        if stream:
            (await request).close()
        else:
            request.cancel()


async def test_a_deadline_before_the_first_byte_is_a_504(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    body, headers = {**slow_stream(fleet, LONG), "stream": False}, {"x-antefix-timeout": "2"}
    async with (
        shortened_answers(http, fleet),
        http.post("/v1/completions", json=body, headers=headers) as late,
    ):
        error = (await late.json())["error"]
    assert late.status == 504 and error["code"] == "deadline_exceeded"


async def test_a_deadline_in_mid_stream_is_an_error_event(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    """Deadlines become longer until one comes after the first token, however busy the cores."""
    code, text, timeout_s = 504, "", 0.5
    while code == 504 and timeout_s < 100:
        timeout_s *= 2
        headers = {"x-antefix-timeout": f"{timeout_s:g}"}
        body = slow_stream(fleet, LONG)
        async with http.post("/v1/completions", json=body, headers=headers) as late:
            code, text = late.status, (await late.read()).decode()
        await all_idle(http, "other")
    assert code == 200
    error = json.loads(text.strip().splitlines()[-1].removeprefix("data: "))["error"]
    assert error["code"] == "deadline_exceeded"


async def test_requests_spread_over_the_replicas(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    async def replica() -> str:
        async with http.post("/v1/completions", json=long_stream(fleet, 60)) as answer:
            await answer.read()
            return answer.headers["x-antefix-replica"]

    served_by = await asyncio.gather(*(replica() for _ in range(8)))
    assert len(set(served_by)) == 2


async def whole_stream(http: aiohttp.ClientSession, fleet: RunningFleet, begun: list[str]) -> None:
    """One of which nothing is missing; who serves it is `begun` with its first token."""
    body = {**long_stream(fleet), "stream_options": {"include_usage": True}}
    async with http.post("/v1/completions", json=body) as answer:
        first = await answer.content.readuntil(b"\n\n")
        begun.append(answer.headers["x-antefix-replica"])
        text = (first + await answer.read()).decode()
    *events, done = text.replace("data: ", "").split("\n\n")[:-1]
    assert done == "[DONE]"
    said = [json.loads(event) for event in events]
    assert len({(event["id"], event["created"]) for event in said}) == 1
    assert said[-1]["usage"]["completion_tokens"] == STREAM_TOKENS


@pytest.mark.core
async def test_a_dead_engine_is_replaced_and_no_request_fails(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    state = fleet.home.state()
    assert state is not None
    # looked for now, so that a stream that has begun has not ended when its engine is killed
    before = {
        replica["replica"]: engine_of_pool(state.run_id, "engine", replica["url"])
        for replica in (await status(http))["replicas"]
    }
    body = {**long_stream(fleet, 120), "stream": False}

    async def ask() -> int:
        async with http.post("/v1/completions", json=body) as answer:
            await answer.read()
            return answer.status

    running = [asyncio.create_task(ask()) for _ in range(6)]
    begun: list[str] = []
    streams = [asyncio.create_task(whole_stream(http, fleet, begun)) for _ in range(4)]
    await until(lambda: begun or any(stream.done() for stream in streams))
    before[begun[0]].send_signal(signal.SIGKILL)
    assert await asyncio.gather(*running) == [200] * 6
    await asyncio.gather(*streams)

    async def replaced() -> bool:
        now = await status(http)
        alive = {of["replica"] for of in now["replicas"]}
        return len(alive) == 2 and alive != {*before} and now["states"] == {"RUNNING": 2}

    await eventually(replaced, within_s=240, every_s=1)


def title_of(pool: str) -> str:
    return f"ServeReplica:{application_of(pool)}:"


def engine_of_pool(run_id: str, pool: str, url: str) -> psutil.Process:
    """vLLM's engine process below the replica actor of the pool that listens there."""
    port = int(url.rpartition(":")[2])
    for process in processes.processes(run_id):
        if title_of(pool) not in " ".join(process.cmdline()):
            continue
        if port in {at.laddr.port for at in process.net_connections("tcp")}:
            return next(of for of in process.children() if "EngineCore" in " ".join(of.cmdline()))
    raise AssertionError(f"no engine of pool {pool} listens at {url}")


async def test_an_update_restarts_only_what_it_must_and_streams_outlive_a_scale_down(
    http: aiohttp.ClientSession, fleet: RunningFleet, tmp_path: Path
) -> None:
    changed = yaml.safe_load(fleet.file.read_text())
    changed["pools"]["engine"]["replicas"] = 1
    changed["pools"]["other"] |= {"env": {**changed["pools"]["other"]["env"], "EXAMPLE": "1"}}
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump(changed))
    gateways = gateways_of(fleet)
    engines, others = await replica_ids(http, "engine"), await replica_ids(http, "other")
    streams = [asyncio.create_task(finish(http, long_stream(fleet))) for _ in range(6)]

    async def all_started() -> bool:
        return await requests_in_engines(http) == 6

    await eventually(all_started, within_s=120)
    update = await asyncio.to_thread(fleet.antefix, "update", str(file), "-o", "json")
    assert update.returncode == 0, update.stderr
    told = json.loads(update.stdout)
    assert (told["pools_restarted"], told["gateways_restarted"]) == (["other"], False)
    assert told["reached_what_runs"] == ["pools.engine.replicas"]
    assert await asyncio.gather(*streams) == [(STREAM_TOKENS, "data: [DONE]")] * 6

    async def one_left() -> bool:
        return bool((await status(http))["states"] == {"RUNNING": 1})

    await eventually(one_left, within_s=240, every_s=0.5)
    assert await finish(http, long_stream(fleet, 4)) == (4, "data: [DONE]")
    assert await replica_ids(http, "engine") < engines
    assert not await replica_ids(http, "other") & others
    assert gateways_of(fleet) == gateways


async def replica_ids(http: aiohttp.ClientSession, pool: str) -> set[str]:
    return {replica["replica"] for replica in (await status(http, pool))["replicas"]}


def gateways_of(fleet: RunningFleet) -> set[int]:
    state = fleet.home.state()
    assert state is not None
    title = f"ServeReplica:{GATEWAYS_APPLICATION}:"
    found = processes.processes(state.run_id)
    return {process.pid for process in found if title in " ".join(process.cmdline())}


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "3600"]) as process:
        yield process
        process.kill()


@pytest.mark.stops_the_fleet
async def test_down_lets_streams_finish_and_ends_its_processes_and_no_others(
    http: aiohttp.ClientSession, fleet: RunningFleet, bystander: subprocess.Popen[bytes]
) -> None:
    state = fleet.home.state()
    assert state is not None
    stream = asyncio.create_task(finish(http, long_stream(fleet)))

    async def started() -> bool:
        return await requests_in_engines(http) == 1

    await eventually(started, within_s=120)
    down = await asyncio.to_thread(fleet.antefix, "down")
    assert down.returncode == 0, down.stderr
    assert await stream == (STREAM_TOKENS, "data: [DONE]")
    assert processes.processes(state.run_id) == []
    assert bystander.poll() is None
