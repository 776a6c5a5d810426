"""Whether a load generator sent its requests when they were due. Pure.

It shares the cores with the engines. Times count from when a request was due, so a late generator
makes a server look slow, never fast; beyond LATE_S a result says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from common.percentiles import Tail, percentile

LATE_S = 0.1


def figures(sent_late_s: Iterable[float | None]) -> dict[str, Any]:
    """How late requests were sent, in seconds. `note`, only of a late generator, is a sentence for
    the page. None for requests that were never sent."""
    late = [seconds for seconds in sent_late_s if seconds is not None]
    if not late:
        return {}
    tail = Tail.of(late)
    told: dict[str, Any] = {
        "sent_late_s": {
            "p50": round(percentile(late, 50), 4),
            tail.name: round(tail.value, 4),
            "most": round(max(late), 4),
        }
    }
    if tail.value > LATE_S:
        told["note"] = (
            f"the load generator was late: requests were sent {tail.value:.2f} s after they were"
            f" due at {tail.name}"
        )
    return told
