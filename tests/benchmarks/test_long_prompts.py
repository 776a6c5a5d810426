"""What the benchmark of long prompts asks for, and how it judges what it finds."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.harness.fleets.played_engine import MAX_MODEL_LEN, facts_of
from benchmarks.long_prompts.placing import AGAIN, CASES, LENGTHS, NEW, NEXT_TURN
from benchmarks.long_prompts.prompts import FORMS, Chats
from benchmarks.long_prompts.run import goals_of
from deployments.prompt import PromptTokens
from tests.deployments.prompt.models import embedded
from tests.deployments.prompt.shapes import CHAT


def found(slow_form: str) -> dict[tuple[str, int, str], list[float]]:
    """One form's next turns take twice the time of the other's."""
    took_ms = {NEW: 100.0, NEXT_TURN: 2.0, AGAIN: 1.0}
    placed = {}
    for form, length, case in itertools.product(FORMS, LENGTHS, CASES):
        seconds = took_ms[case] / 1000 * (2 if form == slow_form else 1)
        placed[form, length, case] = [seconds] * 10
    return placed


@pytest.mark.parametrize("slow_form", FORMS)
def test_the_goal_applies_to_the_next_turn_of_the_slower_prompt_form(slow_form: str) -> None:
    goals = goals_of(found(slow_form), late_s=[0.001, 0.004], count_s=[0.004])
    p50 = goals["next_turn_of_100000_tokens_ms_p50"]
    assert (p50["figure"], p50["met"]) == (4.0, False)
    assert goals["next_turn_of_38000_tokens_ms_p50"]["met"]
    assert goals["count_of_100000_tokens_ms_p50"] == {"figure": 4.0, "at_most": 3, "met": False}
    assert goals["event_loop_late_ms_max"] == {"figure": 4.0, "at_most": 5, "met": True}


@pytest.mark.parametrize("form", FORMS)
def test_a_chat_has_about_the_requested_length_and_can_be_continued(form: str) -> None:
    prompts = PromptTokens(facts_of(embedded()))
    chats = Chats(prompts)
    chat = chats.new(form, 10_000)
    turn = chats.next_turn(chat)
    (short,), (long,) = (
        prompts.token_ids(CHAT, {"messages": messages}) or [[]] for messages in (chat, turn)
    )
    assert 9_500 < len(short) < 11_500 < MAX_MODEL_LEN
    assert 400 < len(long) - len(short) < 700
    assert turn[: len(chat)] == chat
    assert chats.new(form, 10_000) != chat
