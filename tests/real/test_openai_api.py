"""The OpenAI API as the official client uses it, against real engines."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import openai as openai_package
import pytest
from openai import AsyncOpenAI, OpenAI

from cli.common.gateway_client import FIRST_QUESTION
from tests.npm_clients import answers
from tests.real.conftest import RunningFleet

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

QUESTION: Any = [{"role": "user", "content": FIRST_QUESTION}]
WEATHER_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "strict": True,  # otherwise vLLM constrains the name alone
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def test_models_of_every_pool_are_listed(openai: OpenAI, fleet: RunningFleet) -> None:
    cards = {card.id: card for card in openai.models.list()}
    assert set(cards) == {fleet.model, fleet.other_model}
    assert cards[fleet.model].max_model_len == 1024  # type: ignore[attr-defined]
    assert openai.models.retrieve(fleet.model).id == fleet.model


@pytest.mark.core
def test_a_chat_is_answered(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.chat.completions.create(
        model=fleet.model, messages=QUESTION, temperature=0, max_tokens=16
    )
    assert answer.choices[0].message.content
    assert answer.model == fleet.model
    assert answer.usage is not None and answer.usage.prompt_tokens > 20


def test_another_pool_answers_under_its_own_name(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.chat.completions.create(
        model=fleet.other_model, messages=QUESTION, temperature=0, max_tokens=16
    )
    assert answer.model == fleet.other_model
    assert "Tokyo" in (answer.choices[0].message.content or "")


@pytest.mark.core
def test_a_stream_has_the_same_text_as_an_unstreamed_answer(
    openai: OpenAI, fleet: RunningFleet
) -> None:
    stream = openai.chat.completions.create(
        model=fleet.other_model,
        messages=QUESTION,
        temperature=0,
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    text, usage = "", None
    for chunk in stream:
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text == "The capital of Japan is Tokyo."
    assert usage is not None and usage.completion_tokens == 8


async def test_the_async_client_streams(async_openai: AsyncOpenAI, fleet: RunningFleet) -> None:
    stream = await async_openai.chat.completions.create(
        model=fleet.other_model, messages=QUESTION, temperature=0, max_tokens=16, stream=True
    )
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "The capital of Japan is Tokyo."


async def test_npm_clients_read_streamed_and_unstreamed_answers(fleet: RunningFleet) -> None:
    read = await answers(f"{fleet.root}/v1", fleet.api_key, fleet.model)
    assert len(read) == 8
    for name, (whole, streamed) in read.items():
        assert whole and whole == streamed, name
    for api in ("chat", "responses"):  # Vercel's client writes a completion's prompt itself
        assert read[f"openai {api}"] == read[f"vercel {api}"]
    assert read["anthropic messages"] == read["vercel messages"] == read["openai chat"]


def test_usage_reports_the_cached_tokens(openai: OpenAI, fleet: RunningFleet) -> None:
    long: Any = [{"role": "user", "content": "Count the words of this: " + "word " * 300}]

    def cached() -> int:
        answer = openai.chat.completions.create(
            model=fleet.other_model, messages=long, temperature=0, max_tokens=1
        )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0

    assert cached() == 0
    assert cached() >= 256


def test_completions_take_n_stop_seed_and_logprobs(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.completions.create(
        model=fleet.model,
        prompt="One, two, three,",
        n=2,
        seed=7,
        temperature=0.8,
        max_tokens=12,
        stop=[","],
        logprobs=2,
    )
    assert len(answer.choices) == 2
    for choice in answer.choices:
        assert "," not in choice.text
        assert choice.logprobs is not None and choice.logprobs.token_logprobs


def test_a_seed_repeats_an_answer(openai: OpenAI, fleet: RunningFleet) -> None:
    def text() -> str:
        answer = openai.completions.create(
            model=fleet.model, prompt="Once upon a time", seed=11, temperature=1, max_tokens=8
        )
        return answer.choices[0].text

    assert text() == text()


def test_the_embedded_model_samples_as_its_authors_advise(
    openai: OpenAI, fleet: RunningFleet
) -> None:
    def text(**sampling: float) -> str:
        answer = openai.completions.create(
            model=fleet.other_model,
            prompt="Once upon a time",
            seed=5,
            max_tokens=32,
            extra_body=sampling,
        )
        return answer.choices[0].text

    assert text() == text(temperature=0.2, top_p=0.9)
    assert text() != text(temperature=1, top_p=1)


def test_fields_that_only_vllm_knows_pass_through(openai: OpenAI, fleet: RunningFleet) -> None:
    greedy = openai.completions.create(
        model=fleet.model, prompt="The sky is", temperature=0, max_tokens=4
    )
    top_one = openai.completions.create(
        model=fleet.model,
        prompt="The sky is",
        temperature=1,
        max_tokens=4,
        extra_body={"top_k": 1, "min_p": 0.1},
    )
    assert top_one.choices[0].text == greedy.choices[0].text


def test_beam_search_passes_through(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.completions.create(
        model=fleet.other_model,
        prompt="The sky is",
        n=2,
        temperature=0,
        max_tokens=4,
        extra_body={"use_beam_search": True},
    )
    assert len({choice.text for choice in answer.choices}) == 2


def test_an_answer_follows_the_json_schema(openai: OpenAI, fleet: RunningFleet) -> None:
    schema: Any = {
        "type": "object",
        "properties": {"capital": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    answer = openai.chat.completions.create(
        model=fleet.other_model,
        messages=QUESTION,
        temperature=0,
        max_tokens=32,
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "")["capital"] in ("Paris", "Rome")


def test_a_required_tool_is_called_with_its_arguments(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.chat.completions.create(
        model=fleet.other_model,
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
        tools=[WEATHER_TOOL],
        tool_choice="required",
        temperature=0,
        max_tokens=64,
    )
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function" and call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


async def test_a_named_tool_is_called_as_by_vllm_without_antefix(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    body = {
        "model": fleet.other_model,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [WEATHER_TOOL],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 64,
    }
    path = "/v1/chat/completions"
    # a salt each: what is computed after a cached prefix may differ in its last bits
    async with http.post(path, json={**body, "cache_salt": "gateway"}) as answer:
        (call,) = (await answer.json())["choices"][0]["message"]["tool_calls"]
        served_by = answer.headers["x-antefix-replica"]
    (engine,) = [r["url"] for r in fleet.replicas("other") if r["replica"] == served_by]
    async with http.post(
        engine + path, json={**body, "cache_salt": "engine"}, headers=fleet.engine_headers(engine)
    ) as answer:
        (own,) = (await answer.json())["choices"][0]["message"]["tool_calls"]
    assert call["function"] == own["function"]
    assert call["function"]["name"] == "get_weather"


def test_chat_logprobs_are_returned(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.chat.completions.create(
        model=fleet.model, messages=QUESTION, temperature=0, max_tokens=2, logprobs=True,
        top_logprobs=3,
    )  # fmt: skip
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and len((logprobs.content or [])[0].top_logprobs) == 3


async def test_detokenize_reverses_tokenize(
    http: aiohttp.ClientSession, fleet: RunningFleet
) -> None:
    text = "Bonjour, Paris! 你好 🙂"
    async with http.post("/tokenize", json={"model": fleet.model, "prompt": text}) as answer:
        tokens = (await answer.json())["tokens"]
    body = {"model": fleet.model, "tokens": tokens}
    async with http.post("/detokenize", json=body) as answer:
        assert (await answer.json())["prompt"] == text


def test_responses_are_answered(openai: OpenAI, fleet: RunningFleet) -> None:
    answer = openai.responses.create(
        model=fleet.other_model, input=FIRST_QUESTION, temperature=0,
        max_output_tokens=16,
    )  # fmt: skip
    assert "Tokyo" in answer.output_text


def test_embeddings_of_a_chat_model_are_a_clear_400(openai: OpenAI, fleet: RunningFleet) -> None:
    with pytest.raises(openai_package.BadRequestError) as refused:
        openai.embeddings.create(model=fleet.model, input="hello")
    assert refused.value.code == "unsupported_endpoint"
    assert "/v1/embeddings" in str(refused.value)


async def test_openapi_describes_the_api(http: aiohttp.ClientSession) -> None:
    async with http.get("/openapi.json") as answer:
        schema = await answer.json()
    operation = schema["paths"]["/v1/chat/completions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]
    assert "/v1/embeddings" not in schema["paths"]
