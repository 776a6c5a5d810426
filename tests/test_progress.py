"""The remaining time comes from recorded seconds where known, and otherwise from the rate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import missing, progress
from tests.parts import ROOT
from tests.progress import Noted, State, remaining_s

TESTS = """
import pytest

@pytest.fixture
def slow_to_leave():
    yield
    raise AssertionError

def test_that_passes(): ...
def test_that_fails(): assert False
def test_that_leaves_something(slow_to_leave): ...
"""
SHARES = st.floats(progress.RATED_SHARE, 1)
SECONDS = st.floats(0, 10_000)


def noted(share: float) -> Noted:
    tests = [f"test_{n}" for n in range(100)]
    return Noted(frozenset(tests), dict.fromkeys(tests[: round(share * 100)], 1.0))


def test_without_recorded_seconds_each_test_counts_the_same() -> None:
    assert noted(0.25).share({}) == 0.25


def test_recorded_seconds_weigh_a_test_and_others_count_as_their_mean() -> None:
    of = Noted(frozenset({"long", "short", "new"}), {"short": 5.0})
    assert of.share({"long": 30.0, "short": 10.0}) == 10 / (30 + 10 + 20)


def test_before_any_test_is_found_nothing_is_done() -> None:
    assert Noted().share({"a": 1.0}) == 0


def test_a_part_without_a_rate_takes_what_it_usually_takes() -> None:
    assert State(usual_s=100, started=True, elapsed_s=30).left_s == 70
    assert State(usual_s=100, started=True, elapsed_s=130).left_s == 0


@given(SHARES, SECONDS)
def test_a_part_with_a_rate_keeps_it(share: float, testing_s: float) -> None:
    part = State(usual_s=1, started=True, elapsed_s=testing_s, testing_s=testing_s, share=share)
    assert testing_s + part.left_s == pytest.approx(testing_s / share)


@given(st.lists(SECONDS, min_size=1))
def test_parts_that_run_at_once_take_the_time_of_the_longest(usual: list[float]) -> None:
    parts = {str(n): State(usual_s) for n, usual_s in enumerate(usual)}
    assert remaining_s(parts) == max(usual)


@given(st.lists(SECONDS, min_size=1))
def test_parts_that_wait_for_each_other_take_the_time_of_all(usual: list[float]) -> None:
    parts = {str(n): State(s, after=(str(n - 1),) if n else ()) for n, s in enumerate(usual)}
    assert remaining_s(parts) == pytest.approx(sum(usual))


def test_a_finished_part_has_no_remaining_time() -> None:
    parts = {"first": State(100, started=True, ended=True), "then": State(50, after=("first",))}
    assert remaining_s(parts) == 50


def test_a_progress_line_shows_the_time_the_tests_and_the_running_parts() -> None:
    told = progress.line(195, {"quick": "1,200/4,000", "lint": "starts"}, (1_230, 4_030), 320.9)
    assert told == (
        "3:15 elapsed, about 5:20 left: 1,230 of 4,030 tests done (quick 1,200/4,000, lint starts)"
    )


def test_an_incomplete_total_is_marked_as_a_minimum() -> None:
    told = progress.line(1, {"core": "2/12"}, (2, 12), 60, is_whole=False)
    assert "2 of at least 12 tests done" in told


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "several"])
def test_a_session_notes_each_test_once_with_its_seconds(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    file = tmp_path / "noted.jsonl"
    without = (missing.NOTED_IN,)
    environment = {name: value for name, value in os.environ.items() if name not in without}
    subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "test_some.py", *workers],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(ROOT), progress.NOTED_IN: str(file)},
        capture_output=True,
        check=False,
    )
    of = progress.read(file)
    names = {"test_that_passes", "test_that_fails", "test_that_leaves_something"}
    assert of.found == of.ended.keys() == {f"test_some.py::{name}" for name in names}
    assert of.failed == of.found - {"test_some.py::test_that_passes"}
    assert len(file.read_text().splitlines()) == 1 + len(names)


def test_a_partially_written_line_is_read_later(tmp_path: Path) -> None:
    file = tmp_path / "noted.jsonl"
    file.write_text('{"found": ["a"]}\n{"test": "a", "s"')
    assert progress.read(file) == Noted(frozenset({"a"}))
