"""Whether a load generator sent its requests when they were due. Pure.

It shares the cores with the engines. Times count from when a request was due, so a late generator
makes a server look slow, never fast. Beyond LATE_S a result notes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common.percentiles import Tail, percentile

LATE_S = 0.1


def figures(sent_late_s: Iterable[float | None]) -> dict[str, Any]:
    """How late requests were sent, in seconds; None for those that were never sent. `note` is a
    sentence for the page, only of a late generator."""
    late = [seconds for seconds in sent_late_s if seconds is not None]
    if not late:
        return {}
    tail = Tail.of(late)
    spread = {"p50": percentile(late, 50), tail.name: tail.value, "most": max(late)}
    found: dict[str, Any] = {"sent_late_s": {name: round(s, 4) for name, s in spread.items()}}
    if tail.value > LATE_S:
        found["note"] = (
            f"the load generator was late: requests were sent {tail.value:.2f} s after they were"
            f" due at {tail.name}"
        )
    return found
