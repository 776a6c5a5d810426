"""Stops asking a service that does not answer, and asks again once it does.

It opens after FAILURES_TO_OPEN failures one after another: what began before the last failure
was noted failed for the same reason and counts with it, so one stall under many calls is one
failure. While it is open nobody should call; it closes after PROBES_TO_CLOSE good probes in a
row, which the owner makes in the background, never within a request.
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
        """Note a call that began then and failed now; true when this opens the breaker."""
        if self.is_open or began < self._failed_at:
            return False
        self._failed_at = now
        self._failures += 1
        self.is_open = self._failures >= FAILURES_TO_OPEN
        self._good_probes = 0
        return self.is_open

    def probed(self, good: bool) -> bool:
        """Note a probe of an open breaker; true when this closes it."""
        self._good_probes = self._good_probes + 1 if good else 0
        if not self.is_open or self._good_probes < PROBES_TO_CLOSE:
            return False
        self.is_open = False
        self._failures = 0
        return True
