"""What a pool promises, and to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# interactive: somebody waits for the first token. batch: what comes later is as good.
PriorityClass = Literal["interactive", "batch"]


@dataclass(frozen=True)
class Slo:
    """Service level objective of one priority class, in seconds; None: not promised.

    Time to first token and end-to-end time count from a request's arrival, `tpot_s` is the time per
    output token after the first. Nothing is decided by `e2e_s`, which requests are only counted
    against.
    """

    ttft_s: float
    tpot_s: float | None = None
    e2e_s: float | None = None
