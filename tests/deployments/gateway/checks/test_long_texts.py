"""Texts that are tokenized for nothing have a limit of a few contexts."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.gateway.checks.long_texts import SHORT_CHARACTERS, refuse_long_texts
from deployments.gateway.intake.api_errors import ApiError
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.sentences import assert_sentences

CONTEXT = 10_000
MOST = 16 * CONTEXT
LONG = "x" * (MOST + 1)


def refused(path: str, context: int | None = CONTEXT, **fields: Any) -> str | None:
    """The field at fault; None: the request passes."""
    try:
        refuse_long_texts(path, fields, context)
    except ApiError as error:
        assert error.status == 400 and error.code == "context_length_exceeded"
        assert_sentences(error.message)
        return error.param
    return None


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"prompt": LONG}, "prompt"),
        ("/tokenize", {"prompt": LONG, "return_token_strs": True}, "prompt"),
        ("/tokenize", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/tokenize", {"messages": [{"content": [{"type": "text", "text": LONG}]}]}, "messages"),
        ("/tokenize", {"messages": [{"content": LONG[:100]}] * 1602}, "messages"),
        ("/tokenize", {"messages": [], "tools": [{"description": LONG}]}, "messages"),
        ("/tokenize", {"messages": [], "chat_template_kwargs": {"a": {LONG: 1}}}, "messages"),
        ("/detokenize", {"tokens": [1] * (4 * CONTEXT + 1)}, "tokens"),
        ("/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": 5}, "input"),
        ("/v1/embeddings", {"input": ["a", LONG], "truncate_prompt_tokens": "-1"}, "input"),
        ("/v1/completions", {"prompt": LONG, "truncate_prompt_tokens": 5}, "prompt"),
        (
            "/v1/chat/completions",
            {"messages": [{"content": LONG}], "truncate_prompt_tokens": 5},
            "messages",
        ),
        ("/v2/rerank", {"documents": ["a", LONG], "truncate_prompt_tokens": 5}, "documents"),
    ],
)
def test_the_rejection_of_a_text_of_many_contexts_names_its_field(
    path: str, fields: dict[str, Any], param: str
) -> None:
    assert refused(path, **fields) == param


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {"prompt": "x" * (MOST - 100)}),
        ("/detokenize", {"tokens": [1] * 4 * CONTEXT}),
        # vLLM refuses these itself, before it tokenizes them
        ("/v1/embeddings", {"input": LONG}),
        ("/v1/chat/completions", {"messages": [{"content": LONG}]}),
        # each text is truncated by itself
        ("/v1/embeddings", {"input": [LONG[:1000]] * 2048, "truncate_prompt_tokens": 5}),
    ],
)
def test_texts_of_ordinary_length_pass(path: str, fields: dict[str, Any]) -> None:
    assert refused(path, **fields) is None


@pytest.mark.parametrize("context", [None, 320])
def test_a_short_text_passes_whatever_the_context_is(context: int | None) -> None:
    assert refused("/tokenize", context, prompt="x" * SHORT_CHARACTERS) is None
    assert refused("/tokenize", context, prompt="x" * (SHORT_CHARACTERS + 1)) == "prompt"


async def test_no_engine_gets_a_text_of_many_contexts() -> None:
    engine = FakeEngine()
    pool = {"engine_args": {"max_model_len": CONTEXT}}
    async with gateway_before(engine, pool=pool) as front:
        front.sees(engine)
        async with front.post("/tokenize", messages=[{"role": "user", "content": LONG}]) as answer:
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (400, "context_length_exceeded")
            assert f"{MOST:,}" in error["message"]
        assert not engine.bodies
