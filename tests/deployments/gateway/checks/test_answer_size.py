"""A small request may not ask for an answer without bounds."""

from typing import Any

import pytest

from deployments.gateway.checks.answer_size import refuse_many_logprobs, refuse_many_sequences
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.parameters import parameters_of
from deployments.wire.inference_paths import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

MAX_N, MAX_SEQUENCES, MAX_LOGPROBS, LENGTH = 8, 2048, 262_144, 32_768
# The most that vLLM takes.
IDS = list(range(128))
SHOWN = ["message.output_text.logprobs"]


@pytest.mark.parametrize("n", [9, 16384, "16384", " 16_384.0 ", 16384.0])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_too_many_answers_to_a_prompt_are_refused(path: str, n: Any) -> None:
    with pytest.raises(ApiError) as refused:
        refuse_many_sequences(parameters_of(path, {"n": n}), MAX_N, MAX_SEQUENCES)
    assert (refused.value.status, refused.value.param) == (400, "n")
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": ["a"] * 1024, "n": 8}),
        (COMPLETIONS, {"prompt": [[1]] * 1024, "n": "3"}),
        (COMPLETIONS, {"prompt": ["a"] * 2049}),
        (EMBEDDINGS, {"input": ["a"] * 2049}),
        (EMBEDDINGS, {"input": [[1]] * 100_000}),
    ],
)
def test_too_many_sequences_are_refused(path: str, fields: dict[str, Any]) -> None:
    asked = parameters_of(path, fields)
    with pytest.raises(ApiError) as refused:
        refuse_many_sequences(asked, MAX_N, MAX_SEQUENCES)
    assert refused.value.status == 400
    assert f"{asked.sequences:,}" in refused.value.message and "2,048" in refused.value.message
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"n": 8}),
        (CHAT, {"n": "many"}),
        (COMPLETIONS, {"prompt": ["a"] * 1024, "n": 2}),
        (COMPLETIONS, {"prompt": list(range(4000))}),
        (EMBEDDINGS, {"input": ["a"] * 2048, "n": 9}),
    ],
)
def test_ordinary_numbers_of_sequences_pass(path: str, fields: dict[str, Any]) -> None:
    refuse_many_sequences(parameters_of(path, fields), MAX_N, MAX_SEQUENCES)


def check(path: str, fields: dict[str, Any], prompt_tokens: int) -> None:
    refuse_many_logprobs(
        parameters_of(path, fields),
        prompt_tokens,
        max_model_len=LENGTH,
        each_at_most=20,
        most=MAX_LOGPROBS,
    )


@pytest.mark.parametrize(
    ("path", "fields", "prompt_tokens", "param"),
    [
        (CHAT, {"prompt_logprobs": 20, "n": 8, "max_tokens": 1}, 2000, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 20.0}, 30_000, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": -1, "n": "8"}, 2000, "prompt_logprobs"),
        (CHAT, {"echo": "yes", "top_logprobs": 20, "n": 8}, 2000, "prompt_logprobs"),
        (COMPLETIONS, {"echo": True, "logprobs": 20, "n": 8}, 2000, "prompt_logprobs"),
        (COMPLETIONS, {"echo": True, "logprobs": 20, "stream": True}, 30_000, "prompt_logprobs"),
        (COMPLETIONS, {"logprobs": 20, "max_tokens": 2000, "n": 8}, 5, "logprobs"),
        (COMPLETIONS, {"logprobs": 5, "prompt": ["a"] * 1000, "max_tokens": 100}, 9, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 20, "max_tokens": "30000"}, 5, "logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 20, "n": 2}, 5, "logprobs"),
        (CHAT, {"logprobs": True, "logprob_token_ids": IDS, "max_tokens": 2100}, 5, "logprobs"),
        (COMPLETIONS, {"logprobs": 1, "logprob_token_ids": IDS, "max_tokens": 2100}, 5, "logprobs"),
        (
            RESPONSES,
            {"include": SHOWN, "top_logprobs": "20", "max_output_tokens": 30_000},
            5,
            "logprobs",
        ),
    ],
)
def test_too_many_logprobs_are_refused(
    path: str, fields: dict[str, Any], prompt_tokens: int, param: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check(path, fields, prompt_tokens)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert f"{MAX_LOGPROBS:,}" in refused.value.message
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    ("path", "fields", "prompt_tokens"),
    [
        (CHAT, {"n": 8}, 30_000),
        (CHAT, {"logprobs": True, "top_logprobs": 20}, 30_000),
        (CHAT, {"logprobs": True, "top_logprobs": 20, "max_tokens": 30_000, "stream": True}, 5),
        (CHAT, {"logprobs": True, "top_logprobs": 5, "max_tokens": 4096, "n": 8}, 5),
        (CHAT, {"prompt_logprobs": 1}, 100_000),
        (CHAT, {"logprobs": True, "logprob_token_ids": IDS, "max_tokens": 2000}, 5),
        (CHAT, {"logprob_token_ids": IDS, "max_tokens": 2100}, 5),
        # as an evaluation scores its choices
        (COMPLETIONS, {"echo": True, "logprobs": 1, "max_tokens": 0, "prompt": ["a"] * 32}, 65_000),
        (RESPONSES, {"top_logprobs": 20, "max_output_tokens": 30_000}, 5),
        (EMBEDDINGS, {"prompt_logprobs": 20}, 100_000),
    ],
)
def test_ordinary_numbers_of_logprobs_pass(
    path: str, fields: dict[str, Any], prompt_tokens: int
) -> None:
    check(path, fields, prompt_tokens)


async def test_a_gateway_applies_the_bounds_of_the_fleet_file() -> None:
    engine = FakeEngine()
    async with gateway_before(engine, max_sequences=4, max_answer_logprobs=100) as front:
        for fields in (
            {"prompt": ["a"] * 5},
            {"prompt": "a", "prompt_logprobs": 20, "n": 8},
            {"prompt": "a", "logprobs": 10, "max_tokens": "10"},
        ):
            async with front.post("/v1/completions", **fields) as answer:
                assert answer.status == 400
                assert (await answer.json())["error"]["code"] == "invalid_value"
        assert not engine.bodies
        async with front.post("/v1/completions", prompt=["a"] * 4, logprobs=1) as answer:
            assert answer.status == 400  # 4 answers of 16 tokens
        async with front.post("/v1/completions", prompt=["a"] * 4) as answer:
            assert answer.status == 200
