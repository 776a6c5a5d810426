"""A full context is reported in the sentences by which Claude Code recognizes one."""

from __future__ import annotations

import re
from typing import Any

import aiohttp
import pytest

from deployments.wire.inference_paths import CHAT, COUNT_TOKENS, MESSAGES
from tests.agents.conftest import CONTEXT
from tests.fakes.engine import MODEL

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

# As Claude Code 2.1 has them.
PROMPT_TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
ANSWER_TOO_LONG = re.compile(
    r"input length and `max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+), "
    r"decrease input length or `max_tokens` and try again"
)
THOUGHT = {"type": "thinking", "thinking": "Well.", "signature": "s"}


async def asked(http: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, Any]:
    async with http.post(path, json={"model": MODEL, **body}) as answer:
        return answer.status, await answer.json()


def words(count: int) -> dict[str, Any]:
    """A message of about a token per word."""
    return {"messages": [{"role": "user", "content": "word " * count}]}


async def counted(http: aiohttp.ClientSession, body: Any) -> int:
    status, answer = await asked(http, COUNT_TOKENS, body)
    assert status == 200, answer
    tokens: int = answer["input_tokens"]
    return tokens


async def refused(http: aiohttp.ClientSession, body: Any, path: str = MESSAGES) -> dict[str, Any]:
    status, answer = await asked(http, path, body)
    assert status == 400, answer
    error: dict[str, Any] = answer["error"]
    assert error["code"] == "context_length_exceeded"
    return error


@pytest.mark.parametrize("stream", [False, True])
# the last has more characters than the context could have
@pytest.mark.parametrize("count", [9_000, 20_000, 300_000])
async def test_a_prompt_that_is_too_long_is_reported_with_its_length(
    http: aiohttp.ClientSession, count: int, stream: bool
) -> None:
    tokens = await counted(http, words(count))
    assert tokens >= count
    for most in (4, 32_000):
        error = await refused(http, {**words(count), "max_tokens": most, "stream": stream})
        found = PROMPT_TOO_LONG.fullmatch(error["message"])
        assert found is not None, error
        assert [int(number) for number in found.groups()] == [tokens, CONTEXT]


async def test_a_prompt_that_fills_the_context_is_too_long(http: aiohttp.ClientSession) -> None:
    rest = CONTEXT - await counted(http, words(8000))
    full = words(8000 + rest)
    assert await counted(http, full) == CONTEXT
    error = await refused(http, {**full, "max_tokens": 4})
    assert error["message"] == f"prompt is too long: {CONTEXT} tokens > {CONTEXT - 1} maximum"
    status, _ = await asked(http, MESSAGES, {**words(8000 + rest - 1), "max_tokens": 4})
    assert status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_too_long_is_reported_with_both_lengths(
    http: aiohttp.ClientSession, stream: bool
) -> None:
    tokens = await counted(http, words(10))
    error = await refused(http, {**words(10), "max_tokens": 32_000, "stream": stream})
    found = ANSWER_TOO_LONG.fullmatch(error["message"])
    assert found is not None, error
    assert [int(number) for number in found.groups()] == [tokens, 32_000, CONTEXT]
    assert error["param"] == "max_tokens"


async def test_a_prompt_that_only_the_engine_reads_is_counted(
    http: aiohttp.ClientSession,
) -> None:
    """The gateway does not know the time of day that vLLM takes for a missing id."""
    call = {"type": "tool_use", "id": "", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "", "content": "word " * 9000}
    messages = [
        *words(1)["messages"],
        {"role": "assistant", "content": [THOUGHT, call]},
        {"role": "user", "content": [result]},
    ]
    tokens = await counted(http, {"messages": messages})
    error = await refused(http, {"messages": messages, "max_tokens": 4})
    assert error["message"] == f"prompt is too long: {tokens} tokens > {CONTEXT} maximum"
    assert tokens > 9000


async def test_tools_and_system_prompts_count(http: aiohttp.ClientSession) -> None:
    tool = {"name": "look", "description": "word " * 9000, "input_schema": {"type": "object"}}
    for more in ({"tools": [tool]}, {"system": "word " * 9000}):
        tokens = await counted(http, {**words(1), **more})
        error = await refused(http, {**words(1), **more, "max_tokens": 4})
        assert error["message"] == f"prompt is too long: {tokens} tokens > {CONTEXT} maximum"


async def test_chats_keep_the_sentences_that_openais_clients_recognize(
    http: aiohttp.ClientSession,
) -> None:
    error = await refused(http, {**words(9_000), "max_tokens": 4}, CHAT)
    assert error["message"].startswith(f"This model's maximum context length is {CONTEXT} tokens")


async def test_a_field_is_named_as_the_client_sent_it(http: aiohttp.ClientSession) -> None:
    body = {**words(1), "max_tokens": 4, "stop_sequences": [""]}
    status, answer = await asked(http, MESSAGES, body)
    assert status == 400
    assert answer["error"]["message"].startswith("stop_sequences cannot")
    assert answer["error"]["param"] == "stop_sequences"


async def test_a_model_that_does_not_think_says_so_in_the_clients_terms(
    http: aiohttp.ClientSession,
) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    status, answer = await asked(
        http, MESSAGES, {**words(1), "max_tokens": 2000, "thinking": thinking}
    )
    assert (status, answer["error"]["param"]) == (400, "thinking")
    assert "--" not in answer["error"]["message"]
