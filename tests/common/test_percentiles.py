"""One percentile, and no p99 of a handful."""

from __future__ import annotations

import ast
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.percentiles import Tail, percentile, tail_percent

ROOT = Path(__file__).parents[2]


@given(st.lists(st.floats(0.0, 1e6), min_size=1), st.floats(0.0, 100.0))
def test_percentiles_are_numpy_s(figures: list[float], percent: float) -> None:
    ordered = sorted(figures)
    expected = float(np.percentile(ordered, percent))
    assert percentile(ordered, percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_of_nothing_there_is_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize(("samples", "percent"), [(1, 90), (60, 90), (299, 90), (300, 99)])
def test_a_tail_is_a_p99_from_300_samples_on_and_a_p90_of_fewer(samples: int, percent: int) -> None:
    assert tail_percent(samples) == percent
    figures = [float(number) for number in range(samples)]
    assert Tail.of(figures) == Tail(percent, percentile(figures, percent))
    assert Tail.of(figures).name == f"p{percent}"


def test_no_other_module_has_a_percentile_of_its_own() -> None:
    files = [
        file
        for folder in (
            "autoscaling",
            "benchmarks",
            "cli",
            "common",
            "loadgen",
            "router",
            "simulator",
        )
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(files) > 200
    own = {
        file.relative_to(ROOT).as_posix()
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if (
            isinstance(node, ast.FunctionDef) and node.name.strip("_") in ("percentile", "quantile")
        )
        or (isinstance(node, ast.Attribute) and node.attr == "quantiles")
    }
    assert own == {"common/percentiles.py"}
