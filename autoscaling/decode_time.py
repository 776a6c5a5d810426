"""How long answers take from their first token to their last, learned as an engine runs.

As many tokens as the latest answers had, at the pace of the last seconds: when an engine slows
down, those that began before tell so only once they have ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoscaling.ewma import Ewma

# So many of the latest answers tell how long answers are.
ANSWERS = 20.0
# In so many seconds of steps the weight of what was before falls to 1/e.
PACE_S = 4.0


class DecodeTime:
    """Told of each step and of each answer that ended; times in seconds."""

    def __init__(self) -> None:
        self._tokens = Ewma(memory=ANSWERS)
        self._seconds = 0.0
        self._generated = 0.0

    def add_step(self, latencies: Sequence[float], tokens: int) -> None:
        """A step of the engine: the seconds since the token before of each request that got more,
        and how many tokens they got together."""
        if not latencies or tokens < 1:
            return
        # one that was preempted has waited longer than this step
        kept = math.exp(-min(latencies) / PACE_S)
        self._seconds = kept * self._seconds + sum(latencies)
        self._generated = kept * self._generated + tokens

    def add_answer(self, tokens: int) -> None:
        """One has ended, after so many tokens in all."""
        self._tokens.add(max(0, tokens - 1), 1.0)

    @property
    def mean(self) -> float:
        """Seconds; 0 before the first answer."""
        return self._tokens.mean * self._seconds / self._generated if self._generated else 0.0
