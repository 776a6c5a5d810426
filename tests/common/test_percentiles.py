"""One percentile, and no p99 of a handful."""

from __future__ import annotations

import ast
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.percentiles import Tail, percentile, tail_percent
from tests.house import ROOT, modules


@given(st.lists(st.floats(0.0, 1e6), min_size=1), st.floats(0.0, 100.0))
def test_percentiles_equal_those_of_numpy(figures: list[float], percent: float) -> None:
    ordered = sorted(figures)
    expected = float(np.percentile(ordered, percent))
    assert percentile(ordered, percent) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_an_empty_sample_has_no_percentile() -> None:
    assert math.isnan(percentile([], 50))


@pytest.mark.parametrize(("samples", "percent"), [(1, 90), (60, 90), (299, 90), (300, 99)])
def test_the_tail_is_the_p99_for_300_samples_or_more_and_otherwise_the_p90(
    samples: int, percent: int
) -> None:
    assert tail_percent(samples) == percent
    figures = [float(number) for number in range(samples)]
    assert Tail.of(figures) == Tail(percent, percentile(figures, percent))
    assert Tail.of(figures).name == f"p{percent}"


def is_a_percentile(node: ast.AST) -> bool:
    """A function called so, the standard library's, or `ordered[len(ordered) // 2]`."""
    if isinstance(node, ast.FunctionDef):
        return node.name.strip("_") in ("percentile", "quantile")
    if isinstance(node, ast.Attribute):
        return node.attr == "quantiles"
    return (
        isinstance(node, ast.Subscript)
        and isinstance(place := node.slice, ast.BinOp)
        and isinstance(place.op, ast.FloorDiv)
        and "len(" in ast.unparse(place)
    )


def test_no_other_module_computes_a_percentile() -> None:
    # observability's is a query of Prometheus
    files = [path for name, path in modules().items() if not name.startswith("observability")]
    assert len(files) > 300
    own = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if any(map(is_a_percentile, ast.walk(ast.parse(file.read_text()))))
    }
    assert own == {"common/percentiles.py"}
