"""Plays as figures and goals. Pure.

A figure over all traces exists once a seed: the synthetic traces of that seed, and the recorded
ones, which are the same for all. So each goal is a median over seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.backtest.scenarios import (
    KUBERNETES,
    KUBERNETES_OURS,
    OURS,
    RULE,
    SERVE,
    SERVE_OURS,
    WARM_2,
)
from simulator.results import SimulationSummary, Total, mean, totals

ATTAINMENT = ("ramp", "cliff", "bursts")
# Policies that are judged, with what their goals' names end with.
BOTH = ((OURS, ""), (WARM_2, "_with_2_warm"))


@dataclass(frozen=True)
class ScenarioResult:
    """`summaries`: by policy, one a seed; a recorded trace has only one."""

    name: str
    summaries: Mapping[str, Sequence[SimulationSummary]]

    @property
    def means(self) -> dict[str, SimulationSummary]:
        return {policy: mean(found) for policy, found in self.summaries.items()}

    def of_seed(self, number: int) -> dict[str, SimulationSummary]:
        return {policy: of[number % len(of)] for policy, of in self.summaries.items()}


def totals_by_seed(found: Sequence[ScenarioResult]) -> list[dict[str, Total]]:
    """Policy -> sum over all traces, one a seed."""
    seeds = max(len(of) for each in found for of in each.summaries.values())
    return [totals([each.of_seed(number) for each in found]) for number in range(seeds)]


def totals_of_means(found: Sequence[ScenarioResult]) -> dict[str, Total]:
    return totals([each.means for each in found])


def fewest_misses(of: Mapping[str, Total], policies: Sequence[str]) -> str:
    """The target that a tuner would choose, at any cost."""
    return min(policies, key=lambda policy: of[policy].misses)


def goals(found: Sequence[ScenarioResult]) -> dict[str, Any]:
    judged = {**_attained(found), **_beside_serve(found)}
    by_seed, of = totals_by_seed(found), totals_of_means(found)
    for name, peer in (
        ("hpa", fewest_misses(of, KUBERNETES)),
        ("hpa_with_antefix_routing", fewest_misses(of, KUBERNETES_OURS)),
        ("serve_default_with_antefix_routing", SERVE_OURS),
    ):
        for policy, words in BOTH:
            misses = [one[policy].misses / max(1.0, one[peer].misses) for one in by_seed]
            hours = [one[policy].replica_hours / one[peer].replica_hours for one in by_seed]
            judged[f"misses_of_{name}{words}"] = {**RULE.judged("misses", misses), "peer": peer}
            judged[f"replica_hours_of_{name}{words}"] = RULE.judged("replica_hours", hours)
    return judged


def _attained(found: Sequence[ScenarioResult]) -> dict[str, Any]:
    judged = {}
    for each in found:
        for policy, words in BOTH if each.name in ATTAINMENT else ():
            goal = f"{each.name}_attainment{words}"
            judged[goal] = RULE.judged(goal, [one.attainment for one in each.summaries[policy]])
    return judged


def _beside_serve(found: Sequence[ScenarioResult]) -> dict[str, Any]:
    """Antefix compared with Ray Serve's default, seed by seed."""
    judged = {}
    for each in found:
        name = each.name.replace(" ", "_")
        pairs = list(zip(each.summaries[OURS], each.summaries[SERVE], strict=True))
        for goal, figures in (
            ("attainment_above_serve_default", [a.attainment - b.attainment for a, b in pairs]),
            (
                "replica_hours_of_serve_default",
                [a.replica_hours / b.replica_hours for a, b in pairs],
            ),
        ):
            judged[f"{name}_{goal}"] = RULE.judged(goal, figures)
    return judged
