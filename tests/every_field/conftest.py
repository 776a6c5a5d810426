"""One real engine behind a real gateway, whose steps are so short that a prompt takes several."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.every_field.serving import Served, serving
from tests.fakes.front import KEY

STEP_TOKENS = 64
ENGINE_ARGS = {
    "dtype": "float32",
    # an answer without a limit ends soon
    "max_model_len": 320,
    "max_num_seqs": 16,
    "max_num_batched_tokens": STEP_TOKENS,
    "enforce_eager": True,
    # the model's own has a top_p, for which each step sorts its 49,152 tokens
    "generation_config": "vllm",
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    "tool_strict_level": "parameter",
}


@pytest.fixture(scope="package")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(warm_python, ENGINE_ARGS, tmp_path_factory.mktemp("engine") / "log") as served:
        yield served


@pytest.fixture
async def http(served: Served) -> AsyncIterator[aiohttp.ClientSession]:
    key = {"authorization": f"Bearer {KEY}"}
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(served.url, headers=key, timeout=timeout) as session:
        yield session
