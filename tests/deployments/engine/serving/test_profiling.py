"""A replica profiles its engine when it is asked, for the requested time, once at a time."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from deployments.engine.serving.profiling import Profiling
from deployments.wire.headers import LONGEST_PROFILE_S
from tests.fakes.profiler import FakeProfiler
from tests.sentences import assert_sentences
from tests.waiting import until


def client_of(profiler: FakeProfiler) -> httpx.AsyncClient:
    app = Starlette(routes=[Route("/", Profiling(profiler).answer, methods=["POST"])])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://engine")


async def test_a_profile_request_returns_the_trace_files() -> None:
    profiler = FakeProfiler()
    async with client_of(profiler) as client:
        for number in range(2):
            answer = await client.post("/", params={"seconds": 0.01})
            traces = [{"name": f"{number}.pt.trace.json.gz", "bytes": 100}]
            assert answer.json() == {"folder": "/traces", "files": traces}
    assert not profiler.is_on


async def test_an_engine_started_without_a_profiler_is_not_profiled() -> None:
    profiler = FakeProfiler(folder=None)
    async with client_of(profiler) as client:
        answer = await client.post("/", params={"seconds": 0.01})
    assert (answer.status_code, profiler.profiles) == (409, 0)
    assert_sentences(answer.json()["error"]["message"])


@pytest.mark.parametrize("seconds", [0, -1, LONGEST_PROFILE_S + 1, "nan"])
async def test_a_profile_with_an_invalid_duration_is_rejected(seconds: object) -> None:
    profiler = FakeProfiler()
    async with client_of(profiler) as client:
        answer = await client.post("/", params={"seconds": str(seconds)})
    assert (answer.status_code, profiler.profiles) == (400, 0)


async def test_one_profile_runs_at_a_time() -> None:
    profiler = FakeProfiler()
    async with client_of(profiler) as client:
        first = asyncio.create_task(client.post("/", params={"seconds": 0.5}))
        await until(lambda: profiler.is_on)
        second = await client.post("/", params={"seconds": 0.5})
        assert (second.status_code, (await first).status_code) == (409, 200)


async def test_a_profile_ends_in_time_after_its_client_has_left() -> None:
    profiler = FakeProfiler()
    async with client_of(profiler) as client:
        asked = asyncio.create_task(client.post("/", params={"seconds": 0.2}))
        await until(lambda: profiler.is_on)
        asked.cancel()
        await asyncio.wait([asked])
        await until(lambda: profiler.profiles == 1)
    assert not profiler.is_on
