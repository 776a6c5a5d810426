"""Service level objectives by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# interactive: a client waits for the first token. batch: a later answer is as good.
PriorityClass = Literal["interactive", "batch"]


@dataclass(frozen=True)
class Slo:
    """The objectives of one priority class, in seconds; None: no objective.

    Time to first token and end-to-end time start at a request's arrival; `tpot_s` is the time per
    output token after the first. `e2e_s` decides nothing: requests are only counted against it.
    """

    ttft_s: float
    tpot_s: float | None = None
    e2e_s: float | None = None
