"""How unevenly a load is spread over replicas. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable


def variation(amounts: Iterable[tuple[str, float]], replicas: int) -> float:
    """Standard deviation over mean of the sums per replica; unnamed replicas have 0."""
    sums: dict[str, float] = defaultdict(float)
    for replica, amount in amounts:
        sums[replica] += amount
    shares = [*sums.values(), *[0.0] * (replicas - len(sums))]
    mean = statistics.fmean(shares)
    return statistics.pstdev(shares) / mean if mean else 0.0
