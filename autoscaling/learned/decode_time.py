"""The time of answers from their first token to their last, learned while an engine runs.

It is the length of the latest answers at the pace of the last seconds: when an engine slows down,
earlier answers show it only at their end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaling.learned.ewma import Ewma

# Number of latest answers whose lengths are kept.
ANSWERS = 20.0
# After this many seconds of steps, the weight of earlier ones has fallen to 1/e.
PACE_S = 4.0


class DecodeTime:
    """Learns from each step and each ended answer; times in seconds."""

    def __init__(self) -> None:
        self._tokens = Ewma(memory=ANSWERS)
        self._seconds = 0.0
        self._generated = 0.0

    def add_step(self, latencies: Sequence[float], tokens: int) -> None:
        """Add a step of the engine: the seconds since the previous token of each request that got
        more, and their total number of tokens."""
        if not latencies or tokens < 1:
            return
        # a preempted sequence has waited longer than this step
        kept = math.exp(-min(latencies) / PACE_S)
        self._seconds = kept * self._seconds + sum(latencies)
        self._generated = kept * self._generated + tokens

    def add_answer(self, tokens: int) -> None:
        """Add an ended answer with this many tokens in all."""
        self._tokens.add(max(0, tokens - 1), 1.0)

    @property
    def mean(self) -> float:
        """Return the mean in seconds; 0 before the first answer."""
        return self._tokens.mean * self._seconds / self._generated if self._generated else 0.0
