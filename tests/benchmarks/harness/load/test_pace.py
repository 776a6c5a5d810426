"""A result says when its load generator was late."""

from __future__ import annotations

from benchmarks.harness.load import pace


def test_a_load_generator_that_kept_its_pace_is_reported_without_a_note() -> None:
    told = pace.figures([0.001] * 90 + [0.05] * 10 + [None])
    assert told["sent_late_s"] == {"p50": 0.001, "p90": 0.0059, "most": 0.05}
    assert "note" not in told


def test_a_late_load_generator_is_noted_in_its_result() -> None:
    told = pace.figures([0.001] * 295 + [0.7] * 5)
    assert told["note"] == (
        "the load generator was late: requests were sent 0.70 s after they were due at p99"
    )


def test_without_sent_requests_there_are_no_pace_figures() -> None:
    assert pace.figures([None, None]) == {}
