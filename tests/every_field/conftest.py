"""One real engine behind a real gateway, whose steps are so short that a prompt takes several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.every_field.serving import CHATS, Served, serving

STEP_TOKENS = 64
ENGINE_ARGS = {
    **CHATS,
    # an answer without a limit ends soon
    "max_model_len": 320,
    "max_num_batched_tokens": STEP_TOKENS,
}


@pytest.fixture(scope="package")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(warm_python, ENGINE_ARGS, tmp_path_factory.mktemp("engine") / "log") as served:
        yield served


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    async with served.session() as session:
        yield session
