"""When overflow begins and ends, how much of it there may be, and which requests it is for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.overflow import (
    SHARE_WINDOW_S,
    Needs,
    Offers,
    OverflowGate,
    OverflowRules,
    refusal,
)

RULES = OverflowRules(enter=1.0, leave=0.7, max_share=0.5)


def test_overflow_begins_at_a_higher_pressure_than_it_ends() -> None:
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
    """The test keeps its own list of what was decided; an old request weighs exp(-age / 60 s)."""
    gate, now = OverflowGate(OverflowRules(max_share=share)), 0.0
    decided: list[tuple[float, bool]] = []
    for wants, pause in traffic:
        now += pause
        overflows = wants and gate.has_room(now)
        gate.count(overflows, now)
        decided.append((now, overflows))
        weights = [(math.exp((at - now) / SHARE_WINDOW_S), one) for at, one in decided]
        requests = sum(weight for weight, _ in weights)
        overflowed = sum(weight for weight, one in weights if one)
        # the first of a quiet minute may be one too many
        assert overflowed <= max(1.5, share * requests) + 1e-6
        assert gate.share(now) == pytest.approx(overflowed / requests, abs=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("rate", [1, 5])
def test_steady_traffic_overflows_by_its_share_in_each_minute(share: float, rate: int) -> None:
    gate = OverflowGate(OverflowRules(max_share=share))
    for minute in range(5):
        overflowed = 0
        for request in range(60 * rate):
            now = 60.0 * minute + request / rate
            overflows = gate.has_room(now)
            gate.count(overflows, now)
            overflowed += overflows
        assert overflowed == pytest.approx(share * 60 * rate, abs=2)


def test_an_overflow_that_was_taken_back_leaves_room_for_another() -> None:
    gate = OverflowGate(RULES)
    gate.count(True, 0.0)
    assert not gate.has_room(0.0)
    gate.take_back(0.0)
    assert gate.has_room(0.0)
    assert gate.share(0.0) == 0.0


def test_taking_an_overflow_back_twice_frees_room_only_once() -> None:
    gate = OverflowGate(RULES)
    gate.count(True, 0.0)
    for _ in range(2):
        gate.take_back(0.0)
    gate.count(True, 0.0)
    gate.count(True, 0.0)
    assert not gate.has_room(0.0)


def test_the_share_of_no_requests_is_zero() -> None:
    assert OverflowGate(RULES).share(0.0) == 0.0


def test_the_overflow_of_one_tenant_leaves_the_others_their_share() -> None:
    gate = OverflowGate(RULES)
    while gate.has_room(0.0, "flood"):
        gate.count(True, 0.0, "flood")
    for _ in range(100):
        gate.count(gate.has_room(0.0, "flood"), 0.0, "flood")
    assert gate.has_room(0.0, "other")
    gate.count(True, 0.0, "other")
    assert not gate.has_room(0.0, "other")
    assert gate.share(0.0) <= RULES.max_share + 0.01


def test_old_overflow_no_longer_counts() -> None:
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
    "1,000": replace(NEEDS, tokens=1001),
    "tools": replace(NEEDS, tools=True),
    "response format": replace(NEEDS, response_format=True),
    "returns at most 5": replace(NEEDS, logprobs=6),
    "token ids": replace(NEEDS, token_ids=True),
    "images": replace(NEEDS, images=True),
}


def test_a_plain_request_may_be_served_by_the_other_model() -> None:
    assert refusal(NEEDS, OFFERS) is None
    assert refusal(replace(NEEDS, tokens=1000, logprobs=5), OFFERS) is None


@pytest.mark.parametrize("said", BEYOND)
def test_a_request_does_not_overflow_to_a_pool_that_cannot_serve_it(said: str) -> None:
    assert said in (refusal(BEYOND[said], OFFERS) or "")
    assert refusal(BEYOND[said], replace(ABLE, max_model_len=2000)) is None


def test_adapters_and_other_endpoints_never_overflow() -> None:
    assert "'poet'" in (refusal(replace(NEEDS, adapter="poet"), ABLE) or "")
    assert refusal(replace(NEEDS, chat_or_completion=False), ABLE)


def test_a_pool_with_an_unknown_context_length_does_not_qualify_for_overflow() -> None:
    assert refusal(NEEDS, replace(ABLE, max_model_len=None))
