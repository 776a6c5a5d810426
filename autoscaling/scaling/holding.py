"""How long a replica stays after it was last needed: the usual time until it is needed again.

Every number of replicas is tracked separately. One that was needed again after a pause is retained
somewhat longer than that the next time, so recurring bursts find their replicas. A number at the
edge of being needed stays. Nothing is retained for longer than MAX_HOLD_S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Ray Serve's own delay before it scales down.
MAX_HOLD_S = 600.0
# Gaps vary: a replica is held for this multiple of the last one.
MARGIN = 1.5
# Two more replicas at once are a surge, and another surge may follow soon.
SURGE, SURGE_HOLD_S = 2, 300.0
# Learned pauses fade within this time, several times the longest pause that is learned.
REMEMBERED_S = 3600.0


class ReplicaHold(NamedTuple):
    """When the number of replicas of its index was last needed, and how long they are retained."""

    needed_at: float
    hold_s: float


def watched(
    levels: Sequence[ReplicaHold], needed: int, now: float, elapsed_s: float, hold_s: float
) -> tuple[ReplicaHold, ...]:
    """Return the levels after `elapsed_s` more seconds, with `needed` replicas now; retained for at
    least `hold_s`."""
    fading = min(1.0, elapsed_s / REMEMBERED_S)
    after = []
    for count, level in enumerate(levels, start=1):
        hold = max(hold_s, level.hold_s + fading * (hold_s - level.hold_s))
        if count > needed:
            after.append(ReplicaHold(level.needed_at, hold))
            continue
        gap = now - level.needed_at
        if gap <= MAX_HOLD_S:
            hold = max(hold, min(MAX_HOLD_S, MARGIN * gap))
        after.append(ReplicaHold(now, hold))
    return (*after, *[ReplicaHold(now, hold_s)] * (needed - len(levels)))


def raised(levels: Sequence[ReplicaHold], before: int, after: int) -> tuple[ReplicaHold, ...]:
    """Return the levels after growth from `before` to `after` replicas: those of a surge are
    retained for long."""
    if after - before < SURGE:
        return tuple(levels)
    new = [level._replace(hold_s=max(level.hold_s, SURGE_HOLD_S)) for level in levels[before:after]]
    return (*levels[:before], *new, *levels[after:])


def replicas_held(levels: Sequence[ReplicaHold], now: float) -> int:
    """Return how many replicas stay: the highest number whose retention has not ended."""
    for count in range(len(levels), 0, -1):
        needed_at, hold_s = levels[count - 1]
        if now - needed_at < hold_s:
            return count
    return 0
