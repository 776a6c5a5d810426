"""The traffic that several gateways share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.stand.arrivals import Span, conversations, from_trace


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
    assert Span(0, 16).token_ids() == Span(0, 16).token_ids() != Span(3, 16).token_ids()
