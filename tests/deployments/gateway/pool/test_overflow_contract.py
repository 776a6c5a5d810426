"""What a request needs of the pool that stands in, however its numbers are spelled."""

from typing import Any

import pytest

from deployments.fleet.pool import Pool
from deployments.gateway.intake.parameters import VOCABULARY
from deployments.gateway.pool.overflow_contract import needs_of, offers_of
from deployments.wire.inference_paths import CHAT, COMPLETIONS, MESSAGES

POOL = Pool.model_validate({"model": "main", "replicas": 1})


@pytest.mark.parametrize(
    ("path", "fields", "tokens"),
    [
        (CHAT, {"max_tokens": "2000"}, 2005),
        (CHAT, {"max_completion_tokens": 2000.0}, 2005),
        (CHAT, {"max_tokens": 2000, "max_completion_tokens": "7"}, 12),
        (CHAT, {"max_output_tokens": 2000}, 5),
        (COMPLETIONS, {"max_tokens": " 2_000 "}, 2005),
        (COMPLETIONS, {}, 21),
    ],
)
def test_the_longest_requested_answer_counts_for_overflow(
    path: str, fields: dict[str, Any], tokens: int
) -> None:
    assert needs_of(path, fields, None, 5).tokens == tokens


@pytest.mark.parametrize(
    ("path", "fields", "logprobs"),
    [
        (CHAT, {"logprobs": "yes", "top_logprobs": 7.0}, 7),
        (CHAT, {"prompt_logprobs": 7}, 7),
        (CHAT, {"prompt_logprobs": -1}, VOCABULARY),
        (COMPLETIONS, {"logprobs": 7}, 7),
        (COMPLETIONS, {"top_logprobs": 7}, 0),
    ],
)
def test_requested_logprobs_count_for_overflow(
    path: str, fields: dict[str, Any], logprobs: int
) -> None:
    assert needs_of(path, fields, None, 5).logprobs == logprobs


def test_tokens_whose_logprobs_are_asked_for_are_named_by_number() -> None:
    fields = {"logprobs": 1, "logprob_token_ids": [5]}
    assert needs_of(COMPLETIONS, fields, None, 5).token_ids


@pytest.mark.parametrize(("set_to", "offered"), [(None, 20), (5, 5), (-1, VOCABULARY)])
def test_a_pool_offers_as_many_logprobs_as_its_engines_give(
    set_to: int | None, offered: int
) -> None:
    args = {} if set_to is None else {"max_logprobs": set_to}
    pool = POOL.model_copy(update={"engine_args": args})
    assert offers_of(pool, "main", []).max_logprobs == offered


@pytest.mark.parametrize(
    ("set_to", "offered"), [(None, None), (512, 512), (-1, None), ("auto", None)]
)
def test_a_pool_offers_the_length_that_it_is_given(
    set_to: int | str | None, offered: int | None
) -> None:
    pool = POOL.model_copy(update={"engine_args": {"max_model_len": set_to}})
    assert offers_of(pool, "main", []).max_model_len == offered


IMAGE = {"type": "image", "source": {"type": "base64", "data": "AA=="}}
NONE = {"tool_choice": {"type": "none"}, "tools": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, set()),
        ({"tools": [{"name": "a"}]}, {"tools"}),
        (NONE, set()),
        ({"output_config": {"format": {"type": "json_schema"}}}, {"response_format"}),
        ({"messages": [{"content": [IMAGE]}]}, {"images"}),
        ({"messages": [{"content": [{"type": "tool_result", "content": [IMAGE]}]}]}, {"images"}),
        ({"messages": [{"content": [{"type": "text", "text": "image"}]}]}, set()),
    ],
)
def test_anthropic_messages_may_overflow_according_to_their_needs(
    fields: dict[str, Any], needed: set[str]
) -> None:
    needs = needs_of(MESSAGES, {"max_tokens": 7, **fields}, None, 100)
    assert needs.chat_or_completion and needs.tokens == 107
    found = {name for name in ("tools", "response_format", "images") if getattr(needs, name)}
    assert found == needed
