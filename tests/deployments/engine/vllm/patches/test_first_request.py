"""A GPU's engine compiles before it serves, and serves whatever comes of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine.vllm.patches.first_request import send_first_request

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


class Engine:
    """Of vLLM's AsyncLLM, what is called. `fails`: with this error; `hangs`: it never answers."""

    def __init__(
        self, max_logprobs: int = 20, fails: Exception | None = None, hangs: bool = False
    ) -> None:
        self.model_config = SimpleNamespace(max_logprobs=max_logprobs)
        self.asked: list[tuple[Any, Any]] = []
        self.resets = 0
        self._fails, self._hangs = fails, hangs

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[None]:
        self.asked.append((prompt, params))
        if self._fails is not None:
            raise self._fails
        if self._hangs:
            await asyncio.Event().wait()
        yield None

    async def reset_prefix_cache(self) -> None:
        self.resets += 1


@pytest.mark.parametrize(("max_logprobs", "logprobs"), [(20, 1), (-1, 1), (0, None)])
async def test_the_first_request_uses_sampling_parameters_that_vllm_does_not_warm_up(
    max_logprobs: int, logprobs: int | None
) -> None:
    await send_first_request(engine := Engine(max_logprobs))
    ((prompt, params),) = engine.asked
    assert prompt["prompt_token_ids"] == [1, 1, 1, 1]
    assert (params.top_p, params.top_k, params.logprobs, params.max_tokens) == (
        0.9,
        20,
        logprobs,
        1,
    )
    assert engine.resets == 1


async def test_an_engine_that_rejects_its_first_request_serves_anyway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for engine in (Engine(fails=ValueError("no top_p")), Engine(hangs=True)):
        await send_first_request(engine, within_s=0.05)
    assert caplog.text.count("failed to answer its own first request") == 2
