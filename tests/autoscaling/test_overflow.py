"""When overflow begins and ends, how much of it there may be, and which requests it is for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.overflow import Needs, Offers, OverflowGate, OverflowRules, refusal

RULES = OverflowRules(enter=1.0, leave=0.7, max_share=0.5)


def test_it_begins_later_than_it_ends() -> None:
    gate = OverflowGate(RULES)
    seen = []
    for pressure in (0.9, 1.0, 1.1, 0.9, 0.71, 0.7, 0.9, 1.0, 1.01):
        gate.update(pressure)
        seen.append(gate.open)
    assert seen == [False, False, True, True, True, False, False, False, True]


def test_the_first_of_a_quiet_minute_may_overflow() -> None:
    assert OverflowGate(OverflowRules(max_share=0.01)).has_room(0.0)


@given(
    st.floats(0.05, 0.95),
    st.lists(st.tuples(st.booleans(), st.floats(0, 5)), min_size=60, max_size=200),
)
def test_no_more_than_the_share_overflows(share: float, traffic: list[tuple[bool, float]]) -> None:
    gate, now = OverflowGate(OverflowRules(max_share=share)), 0.0
    for wants, pause in traffic:
        now += pause
        may = gate.has_room(now)
        gate.count(wants and may, now)
        # the first of a quiet minute may be one too many
        counts = gate._counts[""]
        assert counts.overflowed <= max(1.5, share * counts.requests) + 1e-9
    assert 0.0 <= gate.share(now) <= 1.0


def test_what_one_tenant_lets_overflow_leaves_the_others_their_share() -> None:
    gate = OverflowGate(RULES)
    while gate.has_room(0.0, "flood"):
        gate.count(True, 0.0, "flood")
    for _ in range(100):
        gate.count(gate.has_room(0.0, "flood"), 0.0, "flood")
    assert gate.has_room(0.0, "other")
    gate.count(True, 0.0, "other")
    assert not gate.has_room(0.0, "other")
    assert gate.share(0.0) <= RULES.max_share + 0.01


def test_what_is_long_ago_counts_no_more() -> None:
    gate = OverflowGate(RULES)
    for _ in range(10):
        gate.count(True, 0.0)
    assert not gate.has_room(0.0)
    assert gate.has_room(180.0)


NEEDS = Needs(chat_or_completion=True, tokens=100)
OFFERS = Offers(
    max_model_len=1000,
    tools=False,
    response_format=False,
    max_logprobs=5,
    same_model=False,
    images=False,
)
ABLE = replace(
    OFFERS, tools=True, response_format=True, max_logprobs=20, same_model=True, images=True
)
BEYOND = {
    "1000": replace(NEEDS, tokens=1001),
    "tools": replace(NEEDS, tools=True),
    "response format": replace(NEEDS, response_format=True),
    "gives at most 5": replace(NEEDS, logprobs=6),
    "token ids": replace(NEEDS, token_ids=True),
    "images": replace(NEEDS, images=True),
}


def test_a_plain_request_may_be_served_by_the_other_model() -> None:
    assert refusal(NEEDS, OFFERS) is None
    assert refusal(replace(NEEDS, tokens=1000, logprobs=5), OFFERS) is None


@pytest.mark.parametrize("said", BEYOND)
def test_what_the_other_pool_cannot_do_keeps_a_request_from_it(said: str) -> None:
    assert said in (refusal(BEYOND[said], OFFERS) or "")
    assert refusal(BEYOND[said], replace(ABLE, max_model_len=2000)) is None


def test_adapters_and_other_endpoints_never_overflow() -> None:
    assert "'poet'" in (refusal(replace(NEEDS, adapter="poet"), ABLE) or "")
    assert refusal(replace(NEEDS, chat_or_completion=False), ABLE)


def test_an_unknown_context_length_is_no_promise() -> None:
    assert refusal(NEEDS, replace(ABLE, max_model_len=None))
