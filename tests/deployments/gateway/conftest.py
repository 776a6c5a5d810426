"""Two engines behind a gateway, for tests that need no other setup."""

from collections.abc import AsyncIterator

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before


@pytest.fixture
def first() -> FakeEngine:
    return FakeEngine("r1")


@pytest.fixture
def second() -> FakeEngine:
    return FakeEngine("r2")


@pytest.fixture
async def front(first: FakeEngine, second: FakeEngine) -> AsyncIterator[Front]:
    async with gateway_before(first, second, request_timeout_s=60.0) as front:
        yield front
