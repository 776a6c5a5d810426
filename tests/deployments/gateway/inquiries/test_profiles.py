"""An operator has an engine profiled through a gateway; others may not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from typer.testing import CliRunner

from cli.main import app
from tests.fakes.engine import FakeEngine
from tests.fakes.front import KEY, OTHER_KEY, Front, gateway_before
from tests.sentences import assert_sentences

TRACES = {"folder": "/traces", "files": [{"name": "0.pt.trace.json.gz", "bytes": 100}]}


@pytest.fixture
def engines() -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine("r0"), FakeEngine("r1")


@pytest.fixture
async def front(engines: tuple[FakeEngine, FakeEngine]) -> AsyncIterator[Front]:
    async with gateway_before(*engines) as front:
        yield front


async def request_profile(front: Front, key: str = KEY, **query: str) -> tuple[int, dict[str, Any]]:
    headers = {"authorization": f"Bearer {key}"}
    path = f"{front.url}/antefix/profile"
    async with front.http.post(path, params=query, headers=headers) as answer:
        return answer.status, await answer.json()


async def test_one_engine_is_profiled(front: Front, engines: tuple[FakeEngine, FakeEngine]) -> None:
    status, told = await request_profile(front, replica="r1", seconds="0.01")
    where = {"pool": "main", "replica": "r1", "node_ip": "127.0.0.1", "seconds": 0.01}
    assert (status, told) == (200, {**where, **TRACES})
    assert [engine.profiler.profiles for engine in engines] == [0, 1]


async def test_only_operators_may_profile_an_engine(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    status, told = await request_profile(front, OTHER_KEY, replica="r1", seconds="0.01")
    assert (status, told["error"]["code"]) == (403, "not_an_operator")
    async with aiohttp.ClientSession() as http, http.post(f"{front.url}/antefix/profile") as answer:
        assert answer.status == 401
    assert [engine.profiler.profiles for engine in engines] == [0, 0]


async def test_a_pool_without_a_replica_has_none_to_profile() -> None:
    async with gateway_before() as front:
        status, told = await request_profile(front, seconds="0.01")
    assert (status, told["error"]["code"]) == (503, "no_replica")
    assert told["error"]["message"] == "The pool 'main' has no replica. Try again in 5 s."


@pytest.mark.parametrize(
    ("query", "status", "param"),
    [
        ({}, 400, "replica"),
        ({"replica": "r9"}, 404, "replica"),
        ({"pool": "no", "replica": "r1"}, 404, "pool"),
        ({"replica": "r1", "seconds": "long"}, 400, "seconds"),
        ({"replica": "r1", "seconds": "61"}, 400, "seconds"),
        ({"replica": "r1", "seconds": "0"}, 400, "seconds"),
    ],
)
async def test_an_impossible_profile_is_refused_with_its_parameter(
    front: Front, query: dict[str, str], status: int, param: str
) -> None:
    found, told = await request_profile(front, **query)
    assert (found, told["error"]["param"]) == (status, param)
    assert_sentences(told["error"]["message"])


async def test_an_engine_without_a_profiler_says_what_to_set(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    engines[0].profiler.folder = None
    status, told = await request_profile(front, replica="r0", seconds="0.01")
    assert (status, told["error"]["code"]) == (409, "cannot_profile")
    assert "profiler_config" in told["error"]["message"]


async def test_the_error_of_a_profile_has_a_header_against_retries(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    engines[0].profiler.folder = None
    headers = {"authorization": f"Bearer {KEY}"}
    query = {"replica": "r0", "seconds": "0.01"}
    url = f"{front.url}/antefix/profile"
    async with front.http.post(url, params=query, headers=headers) as answer:
        assert answer.headers["x-should-retry"] == "false"


async def test_a_profile_of_a_lost_engine_returns_an_error(
    front: Front, engines: tuple[FakeEngine, FakeEngine]
) -> None:
    await engines[0].server.drain()
    status, told = await request_profile(front, replica="r0", seconds="0.01")
    assert (status, told["error"]["code"]) == (502, "cannot_profile")


async def test_the_command_says_where_the_traces_are(front: Front) -> None:
    arguments = ["--replica", "r1", "--duration", "0.01", "--base-url", front.url, "--api-key", KEY]
    done = await asyncio.to_thread(CliRunner().invoke, app, ["profile", *arguments, "-o", "json"])
    where = {"pool": "main", "replica": "r1", "node_ip": "127.0.0.1", "seconds": 0.01}
    assert json.loads(done.stdout) == {**where, **TRACES}
