"""What the attacker of the benchmark sends, and how the victim's times are judged."""

from __future__ import annotations

import itertools
import json
from typing import Any

from benchmarks.grammars.attack import COSTLY, KINDS, constraints
from benchmarks.grammars.gaps import StreamGap, figures_of, worst
from benchmarks.grammars.run import goals_of
from deployments.engine.vllm.constraints.constraint_bounds import excess_of
from deployments.wire.plain_constraints import is_plain


def test_each_constraint_is_new_within_the_bounds_and_not_plain() -> None:
    sent = [*itertools.islice(constraints(), 5 * len(KINDS))]
    assert len({json.dumps(one) for one in sent}) == len(sent)
    for one in sent:
        ((kind, value),) = one.items()
        assert excess_of(kind, value) is None
        assert not is_plain(kind, value)


def figures(alone_s: float, attacked_s: float, after_mb: int) -> dict[str, Any]:
    return {
        "alone": {"tail_s": alone_s},
        "attacked": {"tail_s": attacked_s},
        "memory_mb": {"before": 1000, "most": 2000, "a_minute_later": after_mb},
    }


def test_the_goals_compare_with_the_victim_and_the_memory_before_the_attack() -> None:
    goals = goals_of(figures(0.2, 0.5, 1050), failed=0, worst_gap=2.9)
    assert {name: (goal["figure"], goal["met"]) for name, goal in goals.items()} == {
        "p99_under_attack_of_that_alone": (2.5, False),
        "worst_gap_beside_admitted_of_alone": (2.9, True),
        "memory_a_minute_later_of_before": (1.05, True),
        "failed": (0, True),
    }


def test_the_worst_gap_includes_only_admitted_constraints() -> None:
    gaps = {"a": StreamGap(0.016, 0.024), "b": None, "c": StreamGap(0.02, 0.05)}
    assert worst(gaps) == 2.5
    found = figures_of(gaps)
    assert found["refused"] == ["b"]
    assert {name: one["beside_of_alone"] for name, one in found["admitted"].items()} == {
        "a": 1.5,
        "c": 2.5,
    }
    assert worst({"b": None}) == 1.0


def test_costly_constraints_compile_within_the_bounds_or_are_refused_early() -> None:
    kinds = [next(iter(one.items())) for one in COSTLY.values()]
    assert {excess_of(kind, value) is None for kind, value in kinds} == {True, False}
