"""Rule, seeds and bounds of a benchmark are in goals.yaml; its code takes them from there."""

from __future__ import annotations

import ast

import pytest
import yaml

from benchmarks.harness.results import rules

ROOT = rules.FILE.parent
FOLDERS = {"simulator": "validation"}
NAMES = list(yaml.safe_load(rules.FILE.read_text()))


def modules(benchmark: str) -> list[ast.Module]:
    folder = ROOT / FOLDERS.get(benchmark, benchmark)
    # startup.py is a separate benchmark, of what a faster start brings
    files = [file for file in folder.glob("*.py") if file.name != "startup.py"]
    return [ast.parse(file.read_text()) for file in files]


@pytest.mark.parametrize(
    ("figures", "figure", "met"),
    [([0.9, 1.1, 1.2], 1.1, False), ([0.9, 0.95, 1.2], 0.95, True), ([1.0], 1.0, True)],
)
def test_a_goal_is_judged_by_the_median_seed_and_not_by_the_best(
    figures: list[float], figure: float, met: bool
) -> None:
    judged = rules.judged(figures, {"at_most": 1.0})
    assert (judged["figure"], judged["met"], judged["of"]) == (figure, met, len(figures))
    assert judged["range"] == [min(figures), max(figures)]
    above = rules.judged([1 / figure for figure in figures], {"at_least": 1.0})
    assert above["met"] is met


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_fixes_its_reported_seeds_apart_from_those_for_tuning(name: str) -> None:
    rule = rules.of(name)
    assert rule.says
    assert len(rule.reported) >= 5
    assert not {*rule.reported} & {*rule.tuning}


@pytest.mark.parametrize("name", NAMES)
def test_each_bound_has_exactly_one_kind(name: str) -> None:
    bounds = rules.of(name).bounds
    assert bounds
    assert all(bound.keys() in ({"at_most"}, {"at_least"}, {"below"}) for bound in bounds.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_code_takes_seeds_and_bounds_from_the_file(name: str) -> None:
    calls = [node for of in modules(name) for node in ast.walk(of) if isinstance(node, ast.Call)]
    assert f"rules.of('{name}')" in {ast.unparse(call) for call in calls}
    own_bounds = [
        ast.unparse(call)
        for call in calls
        if any(
            keyword.arg in ("at_most", "at_least")
            and isinstance(keyword.value, ast.Constant)
            and keyword.value.value != 0
            for keyword in call.keywords
        )
    ]
    assert not own_bounds
