"""A gateway makes the same chat of Anthropic's messages as vLLM does.

tests/test_prompt_equality.py compares the tokens, with an engine's renderer for every template.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.prompt.facts import MessagesFacts
from deployments.prompt.messages import as_chat
from deployments.prompt.unknowable import Unknowable
from tests.deployments.prompt.message_shapes import (
    COUNT_TOKENS,
    MESSAGED,
    MESSAGES,
    UNKNOWN_MESSAGES,
)
from tests.deployments.prompt.recorded_messages import DISABLED_EFFORT, WAYS, recorded

TABLE = recorded()
AGAIN = "run `python -m tests.deployments.prompt.recorded_messages`"
# What only the template decides on.
KNOWN_TO_THE_CHAT = {"a tool that is loaded later"}


def known(value: Any) -> Any:
    """Return it as JSON has it, without fields that are not set."""
    if isinstance(value, dict):
        return {name: known(each) for name, each in value.items() if each is not None}
    return [known(each) for each in value] if isinstance(value, list) else value


def test_the_table_has_every_shape() -> None:
    assert TABLE.keys() == MESSAGED.keys(), AGAIN


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MESSAGED)
def test_messages_become_the_chat_that_vllm_makes_of_them(name: str, way: str) -> None:
    _, fields = MESSAGED[name]
    before = json.dumps(fields)
    facts = MessagesFacts(WAYS[way], DISABLED_EFFORT)
    ours, theirs = known(as_chat(fields, facts)), known(TABLE[name][way])
    # vLLM distinguishes more choices, but a prompt does not
    assert (ours.pop("tool_choice") == "none") == (theirs.pop("tool_choice", None) == "none")
    assert ours == theirs
    # a template may write tools as JSON, in their order
    assert json.dumps(ours.get("tools")) == json.dumps(theirs.get("tools"))
    assert json.dumps(fields) == before


@pytest.mark.parametrize("name", sorted(UNKNOWN_MESSAGES.keys() - KNOWN_TO_THE_CHAT))
def test_an_unknown_message_shape_is_not_converted_to_a_chat(name: str) -> None:
    path, fields = UNKNOWN_MESSAGES[name]
    assert path in (MESSAGES, COUNT_TOKENS)
    with pytest.raises(Unknowable):
        as_chat(fields, MessagesFacts(False, DISABLED_EFFORT))
