"""`make test` ends with where its time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import slowest


def report(test: str, seconds: float, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(test, ("f", 0, test), {}, "passed", None, when, duration=seconds)  # type: ignore[arg-type]


def test_each_part_shows_its_wall_clock_and_its_slowest_tests(tmp_path: Path) -> None:
    file = tmp_path / "slowest.tsv"
    passed = [report(f"test_{n}", n) for n in range(30)]
    stats: Mapping[str, Sequence[Any]] = {
        "passed": passed,
        "": ["no report", report("test_2", 100.0, "setup")],
    }
    slowest.append(file, "not real", 60.0, stats)
    slowest.append(file, "real", 300.0, {"passed": [report("test_engine", 12.34)]})
    lines = slowest.shown(file).splitlines()
    assert lines[:3] == [
        "Where the time went:",
        "not real: 60 s, 535 s of tests",
        "   102.0 s  test_2",
    ]
    assert lines[3 + slowest.SHOWN - 1 :] == [
        "real: 300 s, 12 s of tests",
        "    12.3 s  test_engine",
    ]
