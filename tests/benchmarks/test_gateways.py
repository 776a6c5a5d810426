"""The traffic that gateways share, and what is made of their reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateways.gateway_process import OwnPlacements
from benchmarks.gateways.results import (
    GatewayReport,
    GatewaysRun,
    ServedRequest,
    ceiling,
    summary,
    variation,
)
from benchmarks.gateways.traffic import Arrival, Span, conversations, from_trace
from common.percentiles import Tail

SYSTEM, QUESTION, ANSWER, OTHER = (Span(text, 16) for text in range(4))


def served(replica: str, due: float, cached: int = 0, seconds: float = 1.0) -> ServedRequest:
    return ServedRequest(due, replica, 100, cached, 0, 0.1, 0.0, 0.0, 0.1, due + seconds)


def run(*requests: ServedRequest, replicas: int = 2) -> GatewaysRun:
    reports = (GatewayReport(list(requests), 0, len(requests), 0, 0.0),)
    return GatewaysRun(1, True, replicas, 10.0, 20.0, 0.5, reports, Tail(99, 0.0), 0.0)


def test_the_same_seed_makes_the_same_traffic() -> None:
    assert conversations(1, 20.0, 5.0) == conversations(1, 20.0, 5.0)
    assert conversations(1, 20.0, 5.0) != conversations(2, 20.0, 5.0)


def test_as_many_requests_come_as_asked_for() -> None:
    arrivals = conversations(1, rate=60.0, seconds=30.0)
    assert len(arrivals) == pytest.approx(1800, rel=0.1)
    assert all(0 <= arrival.due < 30 for arrival in arrivals)


def test_a_next_turn_begins_with_all_that_was_said() -> None:
    arrivals = conversations(1, 20.0, 20.0)
    prompts = {arrival.prompt for arrival in arrivals}
    later = [a for a in arrivals if a.due > 10 and len(a.prompt) > 2]
    before = [a for a in later if a.prompt[:-2] in prompts]
    assert len(before) > 0.9 * len(later)


def test_a_trace_keeps_its_shared_blocks_and_takes_the_rate_asked_for(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000 * i, "input_length": 1000, "output_length": 80, "hash_ids": [0, i + 1]}
        for i in range(100)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    arrivals = from_trace(file, seed=1, rate=10.0, seconds=5.0)
    assert len(arrivals) == 50
    assert arrivals[-1].due == pytest.approx(5.0)
    assert [span.tokens for span in arrivals[3].prompt] == [128, 122]
    assert arrivals[3].prompt[0] == arrivals[4].prompt[0]


def test_equal_spans_have_equal_tokens() -> None:
    assert SYSTEM.token_ids() == Span(0, 16).token_ids() != OTHER.token_ids()


def test_the_ceiling_counts_all_that_any_request_before_has_left() -> None:
    turns = [
        Arrival(0.0, (SYSTEM, QUESTION), ANSWER, 0.0),
        Arrival(1.0, (SYSTEM, QUESTION, ANSWER, OTHER), ANSWER, 0.0),
        Arrival(2.0, (SYSTEM, QUESTION), ANSWER, 0.0),
    ]
    # three spans of four; then one of two, for the last token is always computed
    assert ceiling(turns, since=0.5, block_tokens=16) == (48 + 16) / (64 + 32)


def test_only_requests_after_the_warm_up_count() -> None:
    told = summary(run(served("a", 9.9), served("a", 10.0, cached=50), served("b", 11.0)))
    assert told.requests == 2
    assert told.cached_ratio == 0.25
    assert told.variation_requests == 0


def test_requests_in_flight_count_for_as_long_as_they_were_there() -> None:
    told = summary(run(served("a", 9.0, seconds=3.0), served("b", 12.0, seconds=2.0)))
    assert told.variation_in_flight == 0


def test_a_replica_that_got_nothing_counts() -> None:
    assert variation([("a", 1.0)], replicas=2) == 1.0
    assert variation([("a", 1.0), ("b", 1.0)], replicas=2) == 0.0


def test_a_gateway_without_an_index_knows_where_it_sent_a_prefix() -> None:
    own = OwnPlacements(max_segments=10)
    own.placed([b"1", b"2"], slot=3)
    own.placed([b"1", b"9"], slot=4)
    assert own.depths([b"1", b"2", b"5"]) == {3: 2, 4: 1}
    assert own.depths([b"7"]) == {}


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(0, 2))))
def test_what_it_knows_is_the_longest_prefix_it_sent_to_each(sent: list[tuple[str, int]]) -> None:
    def keys(text: str) -> list[bytes]:
        return [text[:end].encode() for end in range(1, len(text) + 1)]

    own = OwnPlacements(max_segments=1000)
    for text, slot in sent:
        own.placed(keys(text), slot)
    for slot in range(3):
        known = {text[:end] for text, at in sent if at == slot for end in range(1, len(text) + 1)}
        deepest = max((end for end in range(5) if "abab"[:end] in known), default=0)
        assert own.depths(keys("abab")).get(slot, 0) == deepest
