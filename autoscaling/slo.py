"""What a pool promises, and to whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# interactive: somebody waits for the first token. batch: what comes later is as good.
PriorityClass = Literal["interactive", "batch"]


@dataclass(frozen=True)
class Slo:
    """Service level objective of one priority class: time to first token from a request's
    arrival, and time per output token after it (None: not promised), both in seconds."""

    ttft_s: float
    tpot_s: float | None = None
