"""Whatever a request holds, it ends no engine, and its sender gets an error that says what is
wrong.

The fields are those of vLLM's own description of its API, as a gateway serves it. Each goes alone
with every value, and in pairs with every other, below a step's tokens and above them; one that
several endpoints have is asked at each in turn. With ANTEFIX_EVERY_PAIR=1 every value goes alone
and with every other field, to every endpoint, in a short prompt and a long one.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Iterator
from itertools import combinations, count, permutations, product
from typing import Any

import aiohttp
import pytest

from tests.every_field.asking import LEAST, ask, request
from tests.every_field.conftest import STEP_TOKENS
from tests.every_field.described import fields_of
from tests.every_field.serving import Served
from tests.every_field.values import COMPLETIONS, ODD_FOR_ANY, RESPONSES, VALUES
from tests.fakes.engine import MODEL

EVERY_PAIR = os.environ.get("ANTEFIX_EVERY_PAIR") == "1"

pytestmark = [pytest.mark.real, pytest.mark.timeout(14_400 if EVERY_PAIR else 600)]

AT_ONCE = 12
ANSWERED_WITHIN_S = 60
# a sentence of 10 tokens
SHORT, LONG = "Hi.", "One more story of the harbour and the ferry. " * (STEP_TOKENS // 9)
PATHS = list(LEAST)
Case = tuple[dict[str, Any], str]
Fields = dict[str, list[str]]  # by path


@pytest.fixture
async def fields(http: aiohttp.ClientSession) -> Fields:
    """Of each path, without the model."""
    return {path: sorted(names - {"model"}) for path, names in (await fields_of(http)).items()}


async def faults_of(
    cases: Iterable[Case], path: str, http: aiohttp.ClientSession, served: Served
) -> list[str]:
    """What went wrong, each with the fields that were asked with."""
    numbers, waiting, faults = count(), iter(cases), []

    async def one_after_another() -> None:
        for fields, prompt in waiting:
            # each begins otherwise, so that none is in the prefix cache
            body = request(path, f"{next(numbers)} {prompt}", fields)
            try:
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    fault = (await ask(http, path, body)).fault
            except (TimeoutError, aiohttp.ClientError) as error:
                fault = repr(error)
            if fault:
                faults.append(f"{str(fields)[:200]} with {len(prompt)} characters: {fault}")
            if served.dead:
                return

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return faults


def alone(path: str, fields: Fields) -> Iterator[Case]:
    names = sorted({name for of in fields.values() for name in of})
    every = ((name, value) for name in names for value in (*VALUES.get(name, ()), *ODD_FOR_ANY))
    for turn, (name, value) in enumerate(every):
        if _asked_at(path, {name}, turn, fields):
            yield {name: value}, SHORT
    for name in fields[path]:
        for value in VALUES.get(name, ())[: None if EVERY_PAIR else 1]:
            yield {name: value}, LONG


def pairs(path: str, fields: Fields) -> Iterator[Case]:
    if EVERY_PAIR:
        for one, other in permutations(fields[path], 2):
            for value, prompt in product(VALUES[one], (SHORT, LONG)):
                yield {other: VALUES[other][0], one: value}, prompt
        return
    for turn, both in enumerate(combinations(sorted(VALUES), 2)):
        if _asked_at(path, set(both), turn, fields):
            yield {name: VALUES[name][0] for name in both}, LONG if turn % 2 else SHORT


def _asked_at(path: str, names: set[str], turn: int, fields: Fields) -> bool:
    having = [one for one in PATHS if names <= set(fields[one])]
    return path in having and (EVERY_PAIR or having[turn % len(having)] == path)


async def test_every_field_of_the_api_has_values_here(fields: Fields) -> None:
    """A new one is in vLLM's description; give it values in `tests.every_field.values`."""
    assert {name for names in fields.values() for name in names} == set(VALUES)


@pytest.mark.parametrize("path", PATHS)
async def test_no_single_field_causes_a_server_error(
    path: str, fields: Fields, http: aiohttp.ClientSession, served: Served
) -> None:
    assert not await faults_of(alone(path, fields), path, http, served)
    assert not served.dead


@pytest.mark.parametrize("path", PATHS)
async def test_no_pair_of_fields_causes_a_server_error(
    path: str, fields: Fields, http: aiohttp.ClientSession, served: Served
) -> None:
    assert not await faults_of(pairs(path, fields), path, http, served)
    assert not served.dead


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"json": "[]"}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "#"}}}},
        {"logit_bias": {"1000000": 1}},
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_invalid_response_request_is_a_400_streamed_or_not(
    fields: dict[str, Any], stream: bool, http: aiohttp.ClientSession
) -> None:
    answer = await ask(http, RESPONSES, request(RESPONSES, SHORT, {"stream": stream, **fields}))
    assert not answer.fault
    assert answer.status == 400
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")


@pytest.mark.parametrize(
    ("schema", "said"),
    [({"$ref": "#"}, "Correct or simplify it"), ({"type": "array", "minItems": 10**9}, "10,000")],
)
async def test_an_impossible_schema_returns_an_error(
    schema: dict[str, Any], said: str, http: aiohttp.ClientSession
) -> None:
    answer = await ask(
        http, COMPLETIONS, request(COMPLETIONS, SHORT, {"structured_outputs": {"json": schema}})
    )
    assert answer.status == 400
    assert said in answer.body


async def test_an_endpoint_that_a_generative_model_lacks_returns_a_client_error(
    http: aiohttp.ClientSession,
) -> None:
    answer = await ask(http, "/v1/embeddings", {"model": MODEL, "input": "Hi."})
    assert not answer.fault
    assert answer.status >= 400


async def test_the_long_prompt_takes_more_than_one_step(http: aiohttp.ClientSession) -> None:
    answer = await ask(http, COMPLETIONS, request(COMPLETIONS, LONG, {}))
    assert json.loads(answer.body)["usage"]["prompt_tokens"] > STEP_TOKENS


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


async def test_a_chunked_prompt_has_the_same_answer_as_one_computed_in_a_single_step(
    http: aiohttp.ClientSession, served: Served
) -> None:
    """With a seed, that ended vLLM 0.32's engine on a CPU."""
    prompt = "One more story of the harbour, the ferry and the lighthouse. " * 21
    in_many_steps, computed = await sampled(http, prompt, seed=7)
    assert computed > 2 * STEP_TOKENS
    in_one, computed = await sampled(http, prompt, seed=7)
    assert computed <= STEP_TOKENS
    assert in_many_steps == in_one
    assert (await sampled(http, prompt, seed=8))[0] != in_one
    assert not served.dead


async def test_the_engine_still_answers_after_all_requests(http: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "prompt": "Hi.", "max_tokens": 2, "ignore_eos": True}
    answer = await ask(http, "/v1/completions", body)
    assert answer.status == 200, answer.body
