"""The capacity of a fleet, from an open-loop sweep. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import rules

KNEE_SHARE: float = rules.of("overload").settings["knee_share"]


@dataclass(frozen=True)
class RateStep:
    """`rate` requests a second were offered, of which the share `attained` met the SLO."""

    rate: float
    attained: float


def knee_of(steps: Sequence[RateStep]) -> float:
    """The highest rate up to which every step met the SLO for KNEE_SHARE of what was offered. Steps
    are in the order of their rates. Raises RuntimeError where the first is too much, or where none
    is: then the knee is beyond the sweep."""
    if not steps or steps[0].attained < KNEE_SHARE:
        raise RuntimeError("the first rate of the sweep is too much: lower `first` in goals.yaml")
    if all(step.attained >= KNEE_SHARE for step in steps):
        raise RuntimeError("no rate of the sweep is too much: raise `steps` in goals.yaml")
    return max(
        step.rate
        for number, step in enumerate(steps)
        if all(before.attained >= KNEE_SHARE for before in steps[: number + 1])
    )
