"""How long an engine's step may take at most, learned as it runs.

A step of n tokens takes b + t * (n and its attention), the attention being between nothing and what
`most_work` says. So what a step took is held to be of its tokens alone, and a step that is to begin
has to be done by then with all that its attention may cost: it takes at most as many times longer
as that is more. The longest steps are remembered by tokens, in powers of two. Each step lets its
own group forget a little, so one stall does not count for ever, and hours of decoding leave what
was learned of prefills as it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, log2

# Before so many steps nothing is said: the first ones compile, page in and allocate.
TELLING_STEPS = 20
# After a stall a group's longest step has halved in about 700 steps.
KEPT = 0.999
# Within a group work doubles.
GROUP_SPAN = 2.0


def most_work(sizes: Iterable[tuple[int, int]], hidden_size: int) -> float:
    """In tokens, of a step whose requests each have (tokens, at the end of so long a context).

    A token's attention over `hidden_size` tokens costs at most what the model's weights cost it: in
    a dense model's arithmetic it is a sixth of that.
    """
    return sum(tokens * (1.0 + context / hidden_size) for tokens, context in sizes)


class StepBound:
    def __init__(self) -> None:
        self._longest_s: dict[int, float] = {}
        self._steps = 0

    def add(self, tokens: int, seconds: float) -> None:
        """A step that has ended."""
        group = _group(tokens)
        self._steps += 1
        self._longest_s[group] = max(seconds, self._longest_s.get(group, 0.0) * KEPT)

    def bound_s(self, work: float) -> float:
        """In seconds, for a step that is to begin; infinite while too little is known."""
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
