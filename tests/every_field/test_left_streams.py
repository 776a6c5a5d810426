"""A client that leaves before the end of its answer pays for what its engine generated until then.

vLLM counts tokens when its API server gets them. What its core computes after that server has sent
the abort is in no count: the step that is under way, or two with asynchronous scheduling.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.every_field.serving import Served
from tests.every_field.test_charged_tokens import prompt_of, spent
from tests.every_field.values import CHAT, COMPLETIONS, RESPONSES
from tests.fakes.engine import MODEL
from tests.fakes.front import OTHER_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

KEY = {"authorization": f"Bearer {OTHER_KEY}"}
CHATS = {"messages": [{"role": "user", "content": "Hi."}]}
ANSWERS = {"model": MODEL, "ignore_eos": True}
TWO_PROMPTS = [[5], [6, 7]]
MOST = 250


async def generated_since(
    before: tuple[int, list[tuple[int, int]]], served: Served, tokens: int
) -> None:
    async with asyncio.timeout(30):
        while (await spent(served))[0] < before[0] + tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def charged_and_generated(
    served: Served, before: tuple[int, list[tuple[int, int]]]
) -> tuple[int, int]:
    """For the only request that ended since `before`. The engine's number is that of its metric
    `vllm:generation_tokens_total`."""
    async with asyncio.timeout(30):
        while len((now := await spent(served))[1]) == len(before[1]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    # vLLM counts a step for its metrics after it has counted it for its requests
    await asyncio.sleep(0.2)
    return now[1][-1][1], (await spent(served))[0] - before[0]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {**CHATS, "stream_interval": 200}),
        (CHAT, {**CHATS, "stream_interval": 200, "n": 3}),
        (COMPLETIONS, {"prompt": [5, 6, 7], "stream_interval": 200}),
        (COMPLETIONS, {"prompt": TWO_PROMPTS, "stream_interval": 200, "n": 2}),
        (COMPLETIONS, {"prompt": [5, 6], "stop": ["x" * 200]}),
        (RESPONSES, {"input": "Hi."}),
    ],
)
async def test_tokens_after_the_last_event_are_charged(
    served: Served, path: str, fields: dict[str, Any]
) -> None:
    most = {"max_output_tokens" if path == RESPONSES else "max_tokens": MOST}
    before = await spent(served)
    async with (
        aiohttp.ClientSession(served.url, headers=KEY) as http,
        http.post(path, json={**ANSWERS, **fields, **most, "stream": True}) as answer,
    ):
        assert answer.status == 200, await answer.text()
        # headers come with the first prompt's first token
        prompt = 3 if fields.get("prompt") == TWO_PROMPTS else await prompt_of(answer)
        await generated_since(before, served, 30)
        answer.close()
    charged, generated = await charged_and_generated(served, before)
    assert generated >= 30
    assert charged == prompt + generated


@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 1}])
async def test_generated_tokens_of_an_abandoned_unstreamed_answer_are_charged(
    served: Served, more: dict[str, Any]
) -> None:
    before = await spent(served)
    fields = {**ANSWERS, "prompt": [5, 6, 7], "max_tokens": MOST, **more}
    async with aiohttp.ClientSession(served.url, headers=KEY) as http:
        asking = asyncio.create_task(http.post(COMPLETIONS, json=fields))
        await generated_since(before, served, 30)
        asking.cancel()
    charged, generated = await charged_and_generated(served, before)
    assert charged == 3 + generated
