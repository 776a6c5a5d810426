"""A pool without a replica: its first token is predicted from the start of one.

The rest of a start is a prediction like any other. It decides whether a request overflows, waits or
gets `Retry-After`. If it is unknown, no request is rejected.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.index.slots import LEASE_S

# A report of a start counts for this long without a newer one.
FRESH_S = 5.0
# A late start is expected to take as long again as it is late, and at least this share of the
# prediction. There is no bound on how late it can get.
LATE_SHARE = 0.1


@dataclass(frozen=True)
class Outage:
    """An outage: no replica of the pool is up, as of `as_of`. Times are seconds of any one clock.

    `since`: when it was first seen. `began`: the start of each starting replica, except those
    without a place on a node. `startup_s`: the duration of a start, None: unknown.
    """

    since: float
    as_of: float
    startup_s: float | None = None
    began: tuple[float, ...] = ()

    def up_in_s(self, now: float) -> float | None:
        """Return the seconds until a replica is predicted to be up. One that has not started takes
        at least a whole start."""
        whole_s = self.startup_s
        if whole_s is None:
            return None
        left = (_left_s(whole_s, now - began) for began in self.began)
        return min(left, default=whole_s)


def _left_s(startup_s: float, taken_s: float) -> float:
    left_s = startup_s - max(0.0, taken_s)
    return left_s if left_s > 0.0 else max(-left_s, LATE_SHARE * startup_s)


def confirmed(told: Outage | None, empty_for_s: float, now: float) -> Outage | None:
    """Return the reported outage if it is certain enough to act on.

    `empty_for_s`: how long no replica has had a lease. Within the time of a lease, a replaced
    replica may return. The report must be recent, and about a time since then.
    """
    if told is None or empty_for_s < LEASE_S or now - told.as_of > FRESH_S:
        return None
    return told if told.as_of >= now - empty_for_s else None
