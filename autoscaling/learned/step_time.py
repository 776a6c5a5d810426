"""The time of an engine's decode steps, learned while it runs: step_s + sequences * sequence_s.

Steps are remembered by their number of sequences, in powers of two, and each such group forgets
separately: hours at one load keep the slope that was learned at others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Number of a group's latest steps that count.
MEMORY_STEPS = 100.0
# A group with fewer steps than this may be dominated by one that stalled.
TELLING_STEPS = 5.0


@dataclass
class _Group:
    """Means over its latest steps; `weight` of them."""

    weight: float = 0.0
    sequences: float = 0.0
    seconds: float = 0.0

    def add(self, sequences: int, seconds: float) -> None:
        self.weight = min(self.weight + 1.0, MEMORY_STEPS)
        self.sequences += (sequences - self.sequences) / self.weight
        self.seconds += (seconds - self.seconds) / self.weight


class StepTime:
    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}

    def add(self, latencies: Sequence[float], served: int) -> None:
        """Add a step of the engine: the seconds since the previous token, of each request that got
        a next one.

        The step had `served` requests. If that is more than the latencies, it also computed
        prompts, perhaps parts, and is ignored.
        """
        if not latencies or served > len(latencies):
            return
        # a preempted sequence has waited longer than this step
        sequences, seconds = len(latencies), min(latencies)
        if seconds > 0:
            self._groups.setdefault(sequences.bit_length(), _Group()).add(sequences, seconds)

    def line(self) -> tuple[float, float]:
        """Return `step_s` and `sequence_s` in seconds, neither negative; both 0 before enough
        steps.

        With data of one load only, the growth of the time is unknown, and all of it is `step_s`.
        """
        groups = [group for group in self._groups.values() if group.weight >= TELLING_STEPS]
        total = sum(group.weight for group in groups)
        if not groups:
            return 0.0, 0.0
        n = sum(g.weight * g.sequences for g in groups) / total
        t = sum(g.weight * g.seconds for g in groups) / total
        spread = sum(g.weight * (g.sequences - n) ** 2 for g in groups)
        together = sum(g.weight * (g.sequences - n) * (g.seconds - t) for g in groups)
        slope = together / spread if len(groups) > 1 else 0.0
        if slope <= 0:
            return t, 0.0
        if slope * n >= t:  # the best line starts at 0
            squares = sum(g.weight * g.sequences**2 for g in groups)
            return 0.0, sum(g.weight * g.sequences * g.seconds for g in groups) / squares
        return t - slope * n, slope
