"""The capacity of a fleet, from an open-loop sweep. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.stand import rules
from common.errors import Problem

KNEE_SHARE: float = rules.of("overload").settings["knee_share"]


@dataclass(frozen=True)
class RateStep:
    """`rate` requests a second were offered, of which the share `attained` met the SLO."""

    rate: float
    attained: float


def knee_of(steps: Sequence[RateStep]) -> float:
    """The highest rate up to which all steps met the SLO for KNEE_SHARE of the requests. Steps are
    in the order of their rates. Raises Problem where the first rate is too high, or none is."""
    first, last = steps[0], steps[-1]
    if first.attained < KNEE_SHARE:
        raise Problem(
            f"the sweep has no knee: of its first rate, {first.rate:g}/s, only"
            f" {first.attained:.1%} met the SLO",
            "end what else uses these cores, or lower `first` in benchmarks/goals.yaml",
        )
    if all(step.attained >= KNEE_SHARE for step in steps):
        raise Problem(
            f"the sweep has no knee: of its last rate, {last.rate:g}/s, {last.attained:.1%} met"
            " the SLO",
            "raise `steps` in benchmarks/goals.yaml",
        )
    return max(
        step.rate
        for number, step in enumerate(steps)
        if all(before.attained >= KNEE_SHARE for before in steps[: number + 1])
    )
