"""The slope of a figure under repeated cycles of traffic, with its 95 % interval. Pure.

The median of each cycle's samples counts, since a figure may rise and fall within a cycle. The
slope is the median of those between all pairs of cycles, its interval Kendall's (Theil 1950, Sen
1968): neither depends on the distribution. Kendall's variance grows by (1 + r) / (1 - r) for the
autocorrelation of cycles, as for a first-order process (Yue and Wang 2004).
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
# With fewer, every interval includes everything.
FEWEST_CYCLES = 6
# The largest autocorrelation that is assumed.
MOST_ALIKE = 0.9

Samples = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Slope:
    """Growth per hour with its 95 % interval. `level`: the median of the figure."""

    per_hour: float
    low: float
    high: float
    level: float

    def exceeds(self, bound_per_hour: float) -> bool:
        """Whether it grows faster, with an error probability of 2.5 %."""
        return self.low > bound_per_hour


def slope_of(samples: Samples, cycle_s: float) -> Slope | None:
    """The slope of (seconds, figure) pairs; None of fewer than FEWEST_CYCLES cycles."""
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
    return Slope(middle, slopes[lowest], slopes[highest], level)


def _kendall_variance(points: Samples) -> float:
    """The variance of Kendall's S, corrected for equal values."""

    def of(n: int) -> int:
        return n * (n - 1) * (2 * n + 5)

    ties = Counter(value for _, value in points)
    return (of(len(points)) - sum(map(of, ties.values()))) / 18


def _alike(points: Samples, per_hour: float) -> float:
    """The factor by which autocorrelation increases the variance; at least 1."""
    rests = [value - per_hour / HOUR_S * at for at, value in points]
    mean = statistics.fmean(rests)
    spread = sum((rest - mean) ** 2 for rest in rests)
    if not spread:
        return 1.0
    together = sum((a - mean) * (b - mean) for a, b in pairwise(rests))
    r = min(MOST_ALIKE, max(0.0, together / spread))
    return (1 + r) / (1 - r)
