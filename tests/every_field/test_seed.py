"""A seed and a prompt that takes several steps: on a CPU that ended vLLM 0.32's engine."""

from __future__ import annotations

import aiohttp
import pytest

from tests.every_field.conftest import STEP_TOKENS, Served
from tests.fakes.engine import MODEL

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


async def sampled(http: aiohttp.ClientSession, prompt: str, seed: int) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's an engine's steps had to compute."""
    body = {
        "model": MODEL,
        "prompt": prompt,
        "seed": seed,
        "temperature": 1,
        "top_p": 1,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with http.post("/v1/completions", json=body) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        cached = int(answer.headers["x-antefix-cached-tokens"])
    tokens: list[int] = said["choices"][0]["token_ids"]
    return tokens, said["usage"]["prompt_tokens"] - cached


async def test_a_prompt_in_many_steps_has_the_answer_of_one_in_a_single_step(
    http: aiohttp.ClientSession, served: Served
) -> None:
    prompt = "One more story of the harbour, the ferry and the lighthouse. " * 21
    in_many_steps, computed = await sampled(http, prompt, seed=7)
    assert computed > 2 * STEP_TOKENS
    in_one, computed = await sampled(http, prompt, seed=7)
    assert computed <= STEP_TOKENS
    assert in_many_steps == in_one
    assert (await sampled(http, prompt, seed=8))[0] != in_one
    assert not served.dead
