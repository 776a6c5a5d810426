"""The fake engine does what the real one does: the same checks are called for both."""

from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from tests import contract
from tests.contract import Server
from tests.fakes.engine import MODEL, FakeEngine


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    engine = FakeEngine()
    engine.token_delay_s = 0.005
    await engine.start()
    async with aiohttp.ClientSession() as http:
        yield Server(http, engine.url, MODEL, engine.access)
    await engine.stop()


@pytest.mark.parametrize("check", contract.ENGINE_CHECKS, ids=lambda check: check.__name__)
async def test_the_fake_engine_keeps_the_contract(
    check: Callable[[Server], Awaitable[None]], server: Server
) -> None:
    await check(server)
