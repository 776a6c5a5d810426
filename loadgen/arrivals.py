"""When requests come: arrivals of a Poisson process, whose rate may change. Pure.

How many come is not left to chance: given their number, the arrivals of such a process are
independent of each other, each with a density as the rate. So runs of one rate are of one size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

# Seconds from the start, in order.
Arrivals = Callable[[random.Random], list[float]]


def steady(count: float, seconds: float) -> Arrivals:
    """`count` (rounded, at least one) within so many seconds."""
    return lambda rng: sorted(rng.uniform(0.0, seconds) for _ in range(_whole(count)))


def ramp(first: float, last: float, seconds: float) -> Arrivals:
    """From `first` a second to `last` a second, in a line. Neither is below 0, one is above."""
    slope = (last - first) / seconds

    def when(share: float) -> float:
        """By then, so much of all has come: first t + slope t²/2 = share of the whole."""
        come = share * (first + last) / 2 * seconds
        # in the form that does not divide by the slope
        return 2 * come / (first + math.sqrt(max(0.0, first**2 + 2 * slope * come)))

    count = _whole((first + last) / 2 * seconds)
    # of nothing come so far, the moment is 0, also where the rate begins at 0
    return lambda rng: sorted(when(rng.uniform(1e-12, 1.0)) for _ in range(count))


def _whole(count: float) -> int:
    return max(1, round(count))
