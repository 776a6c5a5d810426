"""A pool without a replica: its first token is predicted for when one has started.

What is left of a start is a prediction like any other. It decides whether a request overflows,
waits or comes back later; where nothing is known of it, nobody is refused for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.slots import LEASE_S

# What is believed no longer of a start: nobody says any more how it is with it.
FRESH_S = 5.0
# A start that is late is expected to take as long again as it is late, and at least this share of
# what was predicted: how late it can get, nobody knows.
LATE_SHARE = 0.1


@dataclass(frozen=True)
class Outage:
    """No replica of the pool is up, as was known at `as_of`. Times are seconds of any one clock.

    `since`: when that was first seen. `began`: of each replica that starts, when it began; those
    that wait for a place on a node are not among them. `startup_s`: how long a start takes, None:
    nothing is known of that.
    """

    since: float
    as_of: float
    startup_s: float | None = None
    began: tuple[float, ...] = ()

    def up_in_s(self, now: float) -> float | None:
        """Seconds until a replica is predicted to be up. One that is still to begin takes a whole
        start, at the least."""
        whole_s = self.startup_s
        if whole_s is None:
            return None
        left = (_left_s(whole_s, now - began) for began in self.began)
        return min(left, default=whole_s)


def _left_s(startup_s: float, taken_s: float) -> float:
    left_s = startup_s - max(0.0, taken_s)
    return left_s if left_s > 0.0 else max(-left_s, LATE_SHARE * startup_s)


def confirmed(told: Outage | None, empty_for_s: float, now: float) -> Outage | None:
    """What was told of, if it is certain enough to act upon.

    `empty_for_s`: for how long no replica had a lease. Before a lease's time has passed, one that
    is replaced may be back; and it has to be told of a time since, and lately.
    """
    if told is None or empty_for_s < LEASE_S or now - told.as_of > FRESH_S:
        return None
    return told if told.as_of >= now - empty_for_s else None
