"""What an engine says of its renderer, on its way to a gateway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from deployments.prompt import ChatTemplate, RendererFacts
from tests.deployments.prompt.engine_facts import facts


def test_facts_are_unchanged_after_a_round_trip() -> None:
    sent = facts(template_kwargs={"mood": {"ä": [1, None]}}, tool_template=None)
    assert RendererFacts.from_json(sent.to_json()) == sent


def test_facts_keep_their_digest_after_a_round_trip() -> None:
    assert RendererFacts.from_json(facts().to_json()).digest == facts().digest


def test_the_order_of_variables_does_not_change_the_digest() -> None:
    one = facts(template_kwargs={"a": 1, "b": 2})
    assert one.digest == facts(template_kwargs={"b": 2, "a": 1}).digest


@pytest.mark.parametrize(
    "changed",
    [
        {"max_model_len": 513},
        {"split_special_tokens": True},
        {"template": ChatTemplate("{{ messages }}", "string")},
        {"tool_template": None},
        {"template_kwargs": {"enable_thinking": False}},
        {"special_tokens": {}},
    ],
)
def test_every_difference_changes_the_digest(changed: dict[str, Any]) -> None:
    assert facts(**changed).digest != facts().digest


def test_the_digest_is_sixteen_hexadecimal_digits() -> None:
    assert len(facts().digest) == 16
    int(facts().digest, 16)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"tokenizer": 1}'])
def test_other_json_is_refused(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        RendererFacts.from_json(data)


def test_a_log_shows_neither_tokenizer_nor_template() -> None:
    assert len(repr(facts())) < 400
