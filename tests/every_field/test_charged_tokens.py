"""However a request spells its numbers, it is charged for the tokens that its engine generated."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deployments.wire.field_table import taken_by
from tests.every_field.asking import LEAST
from tests.every_field.message_values import PATH as MESSAGES
from tests.every_field.serving import Served
from tests.every_field.values import CHAT, COMPLETIONS, RESPONSES
from tests.fakes.engine import MODEL
from tests.fakes.front import OTHER_KEY

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

NUMBERS = (
    *(None, 0, 1, 3, 9, -1, 10**6, True, 5.0, 5.5),
    *("5", "5.0", " 7 ", "1_0", "+4", "many", "", [5]),
)
FEW = (None, 1, 2, 3, "2", 2.0, " 3 ", True, 0, 9, "many")
FLAGS = (None, True, False, 1, 0, "true", "yes", "off", "maybe")
SPELLED = st.fixed_dictionaries(
    {},
    optional={
        "max_tokens": st.sampled_from(NUMBERS),
        "max_completion_tokens": st.sampled_from(NUMBERS),
        "max_output_tokens": st.sampled_from(NUMBERS),
        "n": st.sampled_from(FEW),
        "min_tokens": st.sampled_from(FEW),
        "logprobs": st.sampled_from((*FEW, *FLAGS)),
        "top_logprobs": st.sampled_from(FEW),
        "prompt_logprobs": st.sampled_from(FEW),
        "stream": st.sampled_from(FLAGS),
        "echo": st.sampled_from(FLAGS),
        "use_beam_search": st.sampled_from(FLAGS),
        "ignore_eos": st.sampled_from(FLAGS),
    },
)


async def spent(served: Served) -> tuple[int, list[tuple[int, int]]]:
    """Tokens that the engine has generated, and what each request reserved and was charged."""
    async with (
        aiohttp.ClientSession(headers=served.access) as http,
        http.get(served.spent_url) as answer,
    ):
        said = await answer.json()
    return said["generated"], [(reserved, charged) for reserved, charged in said["settled"]]


def least(path: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps(LEAST[path]).replace("PROMPT", "Hi."))
    needed = ("max_tokens",) if path == MESSAGES else ()  # otherwise vLLM refuses it
    return {name: value for name, value in fields.items() if "max_" not in name or name in needed}


async def prompt_of(answer: aiohttp.ClientResponse) -> int:
    """Its tokens, as the engine confirmed them; 0 where it refused."""
    return int(answer.headers.get("x-antefix-prompt-tokens", 0))


async def charge_of(
    served: Served, path: str, fields: dict[str, Any]
) -> tuple[int, int, int, int, int]:
    """The answer's status; tokens of its prompt, generated, reserved, charged."""
    # gateways refuse the others
    known = {name: value for name, value in fields.items() if name in taken_by(path)}
    before, settled = await spent(served)
    key = {"authorization": f"Bearer {OTHER_KEY}"}
    async with (
        aiohttp.ClientSession(served.url, headers=key) as http,
        http.post(path, json={"model": MODEL, **least(path), **known}) as answer,
    ):
        status, prompt = answer.status, await prompt_of(answer)
        await answer.read()
    async with asyncio.timeout(30):
        while True:
            generated, now = await spent(served)
            if len(now) > len(settled) or status >= 400:
                break
            await asyncio.sleep(0.01)
        # the engine's own count comes with its next step's
        await asyncio.sleep(0.02)
        generated, now = await spent(served)
    reserved, charged = now[-1] if len(now) > len(settled) else (0, 0)
    return status, prompt, generated - before, reserved, charged


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(path=st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]), fields=SPELLED)
@example(path=CHAT, fields={"max_output_tokens": 1})
@example(path=MESSAGES, fields={"max_tokens": "9", "n": 3, "stream": "yes"})
@example(path=MESSAGES, fields={"max_tokens": 9, "max_completion_tokens": 2})
@example(path=RESPONSES, fields={"max_tokens": 1})
@example(path=CHAT, fields={"max_tokens": 1, "max_completion_tokens": "40"})
@example(path=COMPLETIONS, fields={"max_tokens": "40"})
@example(path=COMPLETIONS, fields={"max_tokens": 40.0})
@example(path=COMPLETIONS, fields={"max_tokens": " 4_0 ", "n": "3", "stream": "yes"})
@example(path=COMPLETIONS, fields={"max_tokens": 0, "echo": True})
@example(path=CHAT, fields={"max_tokens": "9", "n": 3, "use_beam_search": "on"})
@example(path=COMPLETIONS, fields={"prompt": ["a", "b"], "max_tokens": "9", "n": 2})
def test_tokens_charged_are_tokens_generated(
    served: Served, path: str, fields: dict[str, Any]
) -> None:
    status, prompt, generated, reserved, charged = asyncio.run(charge_of(served, path, fields))
    if status >= 400:
        # an error reports no prompt tokens to its client
        assert charged >= generated and bool(charged) == bool(generated)
        return
    assert generated > 0
    if "use_beam_search" in fields and charged != prompt + generated:
        # beams read their prompt again for each token, and it is charged once
        prompt = charged - generated
        assert 0 < prompt < 40
    assert charged == prompt + generated
    assert charged <= reserved
