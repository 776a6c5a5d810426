"""One real engine for all clients: of one layer, with tools in its prompts and a long context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.every_field.serving import CHATS, Served, serving

TEMPLATE = Path(__file__).parents[1] / "coding_agent" / "chat_template.jinja"
# The most that the embedded model has.
CONTEXT = 8192
ENGINE_ARGS = {**CHATS, "max_model_len": CONTEXT, "chat_template": str(TEMPLATE)}


@pytest.fixture(scope="package")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(warm_python, ENGINE_ARGS, tmp_path_factory.mktemp("engine") / "log") as served:
        yield served


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    async with served.session() as session:
        yield session
