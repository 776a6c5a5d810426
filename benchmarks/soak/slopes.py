"""Whether a figure grows for as long as it is watched: its slope, with an interval, and a verdict.

A figure is sampled while the same cycle of traffic is played again and again. Of each cycle one
value counts, the median of its samples: what rises and falls within a cycle is no growth, and
samples seconds apart tell the same thing twice. The slope is the median of those between every two
cycles, and its 95 % interval is Kendall's (Theil 1950, Sen 1968): neither asks how the figure is
distributed, and a third of the cycles may be off. For what is left of autocorrelation between
cycles, Kendall's variance is larger by (1 + r) / (1 - r), which is n over the effective sample size
of a first-order process (Bayley and Hammersley 1946; Yue and Wang 2004 for this very test).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

HOUR_S = 3600.0
CONFIDENCE_Z = 1.96
# With fewer, no interval excludes anything.
FEWEST_CYCLES = 6
# Where cycles are more alike than that, they are one long one.
MOST_ALIKE = 0.9

Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Slope:
    """How much more in an hour, with the 95 % interval. `level`: the median, `cycles`: how many
    values it is made from."""

    per_hour: float
    low: float
    high: float
    level: float
    cycles: int

    def exceeds(self, bound_per_hour: float) -> bool:
        """Whether it grows by more than that, with all but 2.5 % certainty."""
        return self.low > bound_per_hour


def slope_of(samples: Samples, cycle_s: float) -> Slope | None:
    """The slope of (seconds, figure) pairs; None where they are too few cycles' to tell."""
    by_cycle: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, value in samples:
        by_cycle[math.floor(at / cycle_s)].append((at, value))
    points = [
        (cycle * cycle_s, statistics.median(value for _, value in of))
        for cycle, of in sorted(by_cycle.items())
    ]
    if len(points) < FEWEST_CYCLES:
        return None
    slopes = sorted((v - u) / (t - s) * HOUR_S for (s, u), (t, v) in combinations(points, 2))
    middle = statistics.median(slopes)
    level = statistics.median(value for _, value in points)
    reach = CONFIDENCE_Z * math.sqrt(_kendall_variance(points) * _alike(points, middle))
    lowest = max(0, math.floor((len(slopes) - reach) / 2) - 1)
    highest = min(len(slopes) - 1, math.ceil((len(slopes) + reach) / 2))
    return Slope(middle, slopes[lowest], slopes[highest], level, len(points))


def _kendall_variance(points: Samples) -> float:
    """Of Kendall's S, equal values taken into account."""

    def of(n: int) -> int:
        return n * (n - 1) * (2 * n + 5)

    ties = Counter(value for _, value in points)
    return (of(len(points)) - sum(map(of, ties.values()))) / 18


def _alike(points: Samples, per_hour: float) -> float:
    """By how much the variance is larger because neighbouring cycles are alike; at least 1."""
    rests = [value - per_hour / HOUR_S * at for at, value in points]
    mean = statistics.fmean(rests)
    spread = sum((rest - mean) ** 2 for rest in rests)
    if not spread:
        return 1.0
    together = sum((a - mean) * (b - mean) for a, b in pairwise(rests))
    r = min(MOST_ALIKE, max(0.0, together / spread))
    return (1 + r) / (1 - r)
