"""How goals are judged: `benchmarks/goals.yaml` has seeds, workloads, baselines and bounds.

A figure of several seeds is their median, with its range.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[2] / "goals.yaml"


@dataclass(frozen=True)
class Rule:
    """The rule of one benchmark. `reported`: the seeds that count. `tuning`: the seeds that code
    may be tuned on. `bounds`: by goal, one of `at_most`, `at_least` and `below`."""

    says: str
    reported: tuple[int, ...]
    tuning: tuple[int, ...]
    settings: Mapping[str, Any]
    bounds: Mapping[str, Mapping[str, float]]

    def judged(self, goal: str, figures: Sequence[float]) -> dict[str, Any]:
        """The median of figures, one per seed, with its range and the goal's bound. Raises KeyError
        for a goal that the file lacks."""
        return judged(figures, self.bounds[goal])


def judged(figures: Sequence[float], bound: Mapping[str, float]) -> dict[str, Any]:
    """The median of at least one figure, its range, the bound and whether it is met."""
    median = statistics.median(figures)
    ((kind, wanted),) = bound.items()
    met = {"at_least": median >= wanted, "at_most": median <= wanted, "below": median < wanted}[
        kind
    ]
    spread = [round(min(figures), 4), round(max(figures), 4)]
    return {"figure": round(median, 4), **bound, "met": met, "range": spread, "of": len(figures)}


@functools.cache
def of(benchmark: str) -> Rule:
    """Raises KeyError for a benchmark without a rule."""
    rule = yaml.safe_load(FILE.read_text())[benchmark]
    seeds = rule["seeds"]
    return Rule(
        " ".join(rule["rule"].split()),
        tuple(seeds["reported"]),
        tuple(seeds.get("tuning", ())),
        rule.get("settings", {}),
        rule["goals"],
    )
