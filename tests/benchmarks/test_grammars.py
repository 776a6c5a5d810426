"""What the attacker of the benchmark sends, and how the victim's times are judged."""

from __future__ import annotations

import itertools
import json
from typing import Any

from benchmarks.grammars.attack import KINDS, constraints
from benchmarks.grammars.run import goals_of
from deployments.engine.vllm.constraint_bounds import excess_of
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


def test_the_goals_are_ratios_to_the_victim_without_attack_and_to_the_memory_before() -> None:
    goals = goals_of(figures(0.2, 0.5, 1050), failed=0)
    assert {name: (goal["figure"], goal["met"]) for name, goal in goals.items()} == {
        "p99_under_attack_of_that_alone": (2.5, False),
        "memory_a_minute_later_of_before": (1.05, True),
        "failed": (0, True),
    }
