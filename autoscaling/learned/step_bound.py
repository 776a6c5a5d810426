"""The longest time of an engine's step, learned while it runs.

A step of n tokens takes b + t * (n and its attention), the attention being between nothing and
`most_work`. A measured time is attributed to the step's tokens only. A new step must finish within
that time, scaled up by the most that its attention may cost.

The longest steps are remembered by tokens, in powers of two. Each step lets its group forget a
little, so one stall does not count forever, and hours of decoding keep what was learned of
prefills.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log2

# No bound before this many steps: the first ones compile, page in and allocate.
TELLING_STEPS = 20
# After a stall, a group's longest step halves in about 700 steps.
KEPT = 0.999
# Work doubles within a group.
GROUP_SPAN = 2.0


def most_work(sizes: Iterable[tuple[int, int]], hidden_size: int) -> float:
    """Return the work, in tokens, of a step whose requests each have (tokens, context length at
    their end).

    A token's attention over `hidden_size` tokens costs at most as much as the model's weights for
    it. In a dense model's arithmetic it is a sixth of that.
    """
    return sum(tokens * (1.0 + context / hidden_size) for tokens, context in sizes)


class StepBound:
    def __init__(self) -> None:
        self._longest_s: dict[int, float] = {}
        self._steps = 0

    def add(self, tokens: int, seconds: float) -> None:
        """Add an ended step."""
        group = _group(tokens)
        self._steps += 1
        self._longest_s[group] = max(seconds, self._longest_s.get(group, 0.0) * KEPT)

    def bound_s(self, work: float) -> float:
        """Return the bound in seconds for a new step; infinite while too little is known."""
        if self._steps < TELLING_STEPS:
            return inf
        group, known = _group(work), self._longest_s
        as_large = [other for other in known if other >= group]
        if as_large:
            nearest = min(as_large)
            return GROUP_SPAN * max(known[other] for other in known if other <= nearest)
        return GROUP_SPAN * max(known.values()) * 2.0 ** (group - max(known))


def _group(work: float) -> int:
    return int(log2(max(1.0, work)))
