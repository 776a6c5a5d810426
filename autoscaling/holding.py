"""How long a replica stays after it was needed last: as long as it usually takes to come back.

Every number of replicas is watched for itself. One that was needed again after a while is held
for somewhat longer than that the next time, so bursts that recur find their replicas, and a number
at the edge between needed and not stays. Nothing is held for longer than MAX_HOLD_S.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Ray Serve's own delay before it scales down.
MAX_HOLD_S = 600.0
# Gaps scatter: held for this much longer than the last one.
MARGIN = 1.5
# Two replicas more at once are a surge, and who surged once may again before long.
SURGE, SURGE_HOLD_S = 2, 300.0
# What was learned fades within this time, several times the longest pause that is learned from.
REMEMBERED_S = 3600.0


class ReplicaHold(NamedTuple):
    """When as many replicas as its place says were needed last, and how long they are held."""

    needed_at: float
    hold_s: float


def watched(
    levels: Sequence[ReplicaHold], needed: int, now: float, elapsed_s: float, hold_s: float
) -> tuple[ReplicaHold, ...]:
    """The levels after `elapsed_s` more seconds, with so many needed now; `hold_s` at least."""
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
    """The levels when so many replicas become so many more: those of a surge are held for long."""
    if after - before < SURGE:
        return tuple(levels)
    new = [level._replace(hold_s=max(level.hold_s, SURGE_HOLD_S)) for level in levels[before:after]]
    return (*levels[:before], *new, *levels[after:])


def replicas_held(levels: Sequence[ReplicaHold], now: float) -> int:
    """How many replicas stay: the highest count whose hold has not run out yet."""
    for count in range(len(levels), 0, -1):
        needed_at, hold_s = levels[count - 1]
        if now - needed_at < hold_s:
            return count
    return 0
