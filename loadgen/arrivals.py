"""Arrival times of a Poisson process with a changing rate. Pure.

The number of arrivals is fixed, so that runs of one rate have the same size. Given the number,
arrivals of such a process are independent, with a density proportional to the rate.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

# Seconds from the start, in order.
Arrivals = Callable[[random.Random], list[float]]


def steady(count: float, seconds: float) -> Arrivals:
    """Return `count` arrivals (rounded, at least one) within this many seconds."""
    return lambda rng: sorted(rng.uniform(0.0, seconds) for _ in range(_whole(count)))


def ramp(first: float, last: float, seconds: float) -> Arrivals:
    """Return arrivals with a rate that changes linearly from `first` to `last` per second.

    Neither is below 0, and one is above.
    """
    slope = (last - first) / seconds

    def when(share: float) -> float:
        """Return the time by which this share of all has arrived: first t + slope t²/2 = share of
        the total."""
        come = share * (first + last) / 2 * seconds
        # in the form that does not divide by the slope
        return 2 * come / (first + math.sqrt(max(0.0, first**2 + 2 * slope * come)))

    count = _whole((first + last) / 2 * seconds)
    # of nothing come so far, the moment is 0, also where the rate begins at 0
    return lambda rng: sorted(when(rng.uniform(1e-12, 1.0)) for _ in range(count))


def _whole(count: float) -> int:
    return max(1, round(count))
