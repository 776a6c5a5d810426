"""The percentiles of all figures of this project, and the highest one that samples allow.

p99 from 300 samples on, with three samples beyond it; p90 with fewer
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

P99_SAMPLES = 300


def percentile(figures: Iterable[float], percent: float) -> float:
    """Interpolate between two samples, as numpy does. Return NaN for no samples."""
    ordered = sorted(figures)
    if not ordered:
        return math.nan
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def tail_percent(samples: int) -> int:
    """Return 99 or 90: the highest percentile that does not depend on the few largest samples."""
    return 99 if samples >= P99_SAMPLES else 90


@dataclass(frozen=True)
class Tail:
    """The highest percentile that the samples allow; its `name` is p99 or p90."""

    percent: int
    value: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Tail:
        percent = tail_percent(len(figures))
        return cls(percent, percentile(figures, percent))

    @property
    def name(self) -> str:
        return f"p{self.percent}"
