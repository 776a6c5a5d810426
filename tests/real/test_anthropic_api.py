"""Anthropic's API as its official client uses it, against real engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import pytest
import pytest_asyncio
from anthropic import Anthropic, AsyncAnthropic

from cli.common.gateway_client import FIRST_QUESTION
from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

QUESTION: Any = [{"role": "user", "content": FIRST_QUESTION}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather in a city",
    "strict": True,
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
# The client's newer releases do not name it.
GREEDY = {"temperature": 0}
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch="


@pytest.fixture
def client(fleet: RunningFleet) -> Iterator[Anthropic]:
    with Anthropic(base_url=fleet.root, api_key=fleet.api_key, max_retries=0) as client:
        yield client


@pytest_asyncio.fixture
async def async_client(fleet: RunningFleet) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(
        base_url=fleet.root, auth_token=fleet.api_key, api_key=None, max_retries=0
    ) as client:
        yield client


def test_a_question_is_answered(client: Anthropic, fleet: RunningFleet) -> None:
    message = client.messages.create(
        model=fleet.other_model, max_tokens=16, messages=QUESTION, extra_body=GREEDY
    )
    (block,) = message.content
    assert block.type == "text" and block.text == "The capital of Japan is Tokyo."
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 8)
    assert message._request_id


async def test_a_streamed_message_has_the_expected_text(
    async_client: AsyncAnthropic, fleet: RunningFleet
) -> None:
    async with async_client.messages.stream(
        model=fleet.other_model, max_tokens=16, messages=QUESTION, extra_body=GREEDY
    ) as stream:
        text = "".join([text async for text in stream.text_stream])
        message = await stream.get_final_message()
    assert text == "The capital of Japan is Tokyo."
    assert message.stop_reason == "end_turn" and message.usage.input_tokens > 20


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_read(
    client: Anthropic, fleet: RunningFleet, stream: bool
) -> None:
    asked: Any = {
        "model": fleet.other_model,
        "max_tokens": 60,
        "extra_body": GREEDY,
        "tools": [WEATHER],
        "tool_choice": {"type": "tool", "name": "get_weather"},
    }
    if stream:
        with client.messages.stream(messages=QUESTION, **asked) as events:
            message = events.get_final_message()
    else:
        message = client.messages.create(messages=QUESTION, **asked)
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather" and call.input["city"] in ("Paris", "Rome")
    assert message.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "21 degrees"}
    turns: Any = [
        *QUESTION,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [result]},
    ]
    free = {**asked, "tool_choice": {"type": "none"}, "max_tokens": 4}
    assert client.messages.create(messages=turns, **free).usage.output_tokens == 4


@pytest.mark.parametrize("more", [{}, {"system": "Be brief."}, {"tools": [WEATHER]}])
def test_count_tokens_matches_the_number_of_tokens_that_the_engine_reads(
    client: Anthropic, fleet: RunningFleet, more: Any
) -> None:
    for model in (fleet.model, fleet.other_model):
        counted = client.messages.count_tokens(model=model, messages=QUESTION, **more)
        answer = client.messages.with_raw_response.create(
            model=model, max_tokens=1, messages=QUESTION, **more
        )
        assert counted.input_tokens == int(answer.headers["x-antefix-prompt-tokens"])


def test_a_system_block_that_changes_leaves_the_prompt_cached(
    client: Anthropic, fleet: RunningFleet
) -> None:
    """Engine and index agree on where prompts are alike."""
    long = "The harbour, the ferry and the lighthouse of the island. " * 30
    headers = []
    for turn in range(2):
        system: Any = [
            {"type": "text", "text": f"{BILLING}{turn:05};"},
            {"type": "text", "text": long},
        ]
        answer = client.messages.with_raw_response.create(
            model=fleet.other_model, max_tokens=1, system=system, messages=QUESTION
        )
        headers.append(answer.headers)
    assert int(headers[1]["x-antefix-cached-tokens"]) >= 256
    cached, predicted = (
        int(headers[1][f"x-antefix-cached-tokens{of}"]) for of in ("", "-predicted")
    )
    assert predicted <= cached


def test_models_are_listed(client: Anthropic, fleet: RunningFleet) -> None:
    assert {model.id for model in client.models.list()} == {fleet.model, fleet.other_model}
    assert client.models.retrieve(fleet.model).display_name == fleet.model


def test_the_error_for_a_too_long_prompt_has_a_separate_code(
    client: Anthropic, fleet: RunningFleet
) -> None:
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(
            model=fleet.model, max_tokens=4, messages=[{"role": "user", "content": "a " * 3000}]
        )
    body: Any = refused.value.body
    assert body["error"]["code"] == "context_length_exceeded"
    assert refused.value.request_id == body["request_id"]
