"""A circuit breaker: it stops calls to a service that does not answer, until it answers again.

It opens after FAILURES_TO_OPEN failures in a row. Failed calls that started before the last
recorded failure count with it, because they have the same cause. So one stall under many calls is
one failure. While it is open, no calls should be made. It closes after PROBES_TO_CLOSE good probes
in a row, which the owner makes in the background, never within a request.
"""

from __future__ import annotations

FAILURES_TO_OPEN = 3
PROBES_TO_CLOSE = 2


class Breaker:
    """Times are seconds on any one monotonic clock."""

    def __init__(self) -> None:
        self.is_open = False
        self._failures = 0
        self._failed_at = float("-inf")
        self._good_probes = 0

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, began: float, now: float) -> bool:
        """Record a call that started then and failed now. Return true if this opens the breaker."""
        if self.is_open or began < self._failed_at:
            return False
        self._failed_at = now
        self._failures += 1
        self.is_open = self._failures >= FAILURES_TO_OPEN
        self._good_probes = 0
        return self.is_open

    def probed(self, good: bool) -> bool:
        """Record a probe of an open breaker. Return true if this closes it."""
        self._good_probes = self._good_probes + 1 if good else 0
        if not self.is_open or self._good_probes < PROBES_TO_CLOSE:
            return False
        self.is_open = False
        self._failures = 0
        return True
