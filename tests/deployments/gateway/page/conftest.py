"""A browser, and a gateway before fake engines, for all tests of a file."""

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, async_playwright, expect

from deployments.gateway.pool import serve_controller
from tests.deployments.gateway.page.reading import PATIENCE_MS, SLO, Reader, reading
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.missing import program
from tests.router.index_redis import control, server_of
from tests.router.redis_process import RedisProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisProcess]:
    with server_of("redis", tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    chromium, _ = program("chromium"), program("libatomic.so.1")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, int]]:
    """Replica counts, as Ray Serve would report them; there is no Ray here."""
    states = {"gateway": {"RUNNING": 1}, "main": {"RUNNING": 2}}

    monkeypatch.setattr(serve_controller, "ask_status", lambda: serve_controller.Status(states))
    return states


@pytest_asyncio.fixture(loop_scope="module")
async def front(server: RedisProcess) -> AsyncIterator[Front]:
    with control(server) as client:
        client.flushall()
    engines = FakeEngine("r0"), FakeEngine("r1")
    async with gateway_before(*engines, redis_url=server.url, pool=SLO) as front:
        yield front


@pytest_asyncio.fixture(loop_scope="module")
async def reader(browser: Browser, front: Front) -> AsyncIterator[Reader]:
    async with reading(browser, front) as reader:
        yield reader
