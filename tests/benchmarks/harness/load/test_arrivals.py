"""The traffic that several gateways share."""

from __future__ import annotations

import pytest

from benchmarks.harness.load.arrivals import Span, conversations


def test_the_same_seed_makes_the_same_traffic() -> None:
    assert conversations(1, 20.0, 5.0) == conversations(1, 20.0, 5.0)
    assert conversations(1, 20.0, 5.0) != conversations(2, 20.0, 5.0)


def test_the_trace_has_the_requested_number_of_requests() -> None:
    arrivals = conversations(1, rate=60.0, seconds=30.0)
    assert len(arrivals) == pytest.approx(1800, rel=0.1)
    assert all(0 <= arrival.due < 30 for arrival in arrivals)


def test_each_turn_starts_with_the_whole_conversation_so_far() -> None:
    arrivals = conversations(1, 20.0, 20.0)
    prompts = {arrival.prompt for arrival in arrivals}
    later = [a for a in arrivals if a.due > 10 and len(a.prompt) > 2]
    before = [a for a in later if a.prompt[:-2] in prompts]
    assert len(before) > 0.9 * len(later)


def test_equal_spans_have_equal_tokens() -> None:
    assert Span(0, 16).token_ids() == Span(0, 16).token_ids() != Span(3, 16).token_ids()
