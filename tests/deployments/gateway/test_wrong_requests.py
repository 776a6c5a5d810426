"""Thousands of wrong requests to a real gateway; `tests/real` has some before real engines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import MODEL, FakeEngine
from tests.fakes.front import KEY, Front, gateway_before
from tests.waiting import until
from tests.wrong_requests.asking import Port, WrongRequest
from tests.wrong_requests.clients import faults_of_clients
from tests.wrong_requests.laws import assert_no_faults
from tests.wrong_requests.making import wrong_bodies, wrong_bytes, wrong_headers, wrong_targets

pytestmark = pytest.mark.hypothesis


class _AnswersAll(FakeEngine):
    """What it is asked is the gateway's to read; what it makes of that is for real engines."""

    def __init__(self) -> None:
        super().__init__()
        self.renderer = facts()
        self.answers = JSONResponse({"choices": [], "usage": {}})


@contextmanager
def _served(
    engine: FakeEngine, redis_url: str
) -> Iterator[tuple[Front, asyncio.AbstractEventLoop]]:
    """Run a gateway in a separate loop, for properties that run their own loops."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = gateway_before(engine, redis_url=redis_url)
    try:
        front = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(60)
        try:
            yield front, loop
        finally:
            ended = serving.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(ended, loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _port(url: str, key: str = "") -> Port:
    host, _, port = url.removeprefix("http://").partition(":")
    return Port(host, int(port), key)


@pytest.mark.parametrize(
    "requests",
    [wrong_bodies(MODEL), wrong_bytes(MODEL), wrong_headers(MODEL), wrong_targets()],
    ids=["bodies", "bytes", "headers", "targets"],
)
def test_every_wrong_request_returns_an_error(
    requests: st.SearchStrategy[WrongRequest], redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), _served(_AnswersAll(), redis_url) as (front, loop):
        knows = until(lambda: front.pool.reader.renderer.prompt_tokens, 30)
        asyncio.run_coroutine_threadsafe(knows, loop).result()
        assert_no_faults(_port(front.url, KEY), requests, settings().max_examples)
        lets_go = until(lambda: not front.gateway.parts.bodies.held_bytes, 30)
        asyncio.run_coroutine_threadsafe(lets_go, loop).result()
    assert not [record.getMessage() for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("of", ["gateway", "engine"])
def test_misbehaving_clients_cause_no_faults(
    of: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine()
    engine.token_delay_s = 0.02
    with caplog.at_level(logging.INFO), _served(engine, redis_url) as (front, loop):
        port = _port(front.url, KEY) if of == "gateway" else _port(engine.url)
        faults = asyncio.run(faults_of_clients(port, MODEL))
        assert not faults, "\n".join(faults)
        asyncio.run_coroutine_threadsafe(until(lambda: not engine.running, 30), loop).result()
        lets_go = until(lambda: not front.gateway.parts.bodies.held_bytes, 30)
        asyncio.run_coroutine_threadsafe(lets_go, loop).result()
    assert not [record.getMessage() for record in caplog.records if record.exc_info]
