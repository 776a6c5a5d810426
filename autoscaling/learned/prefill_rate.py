"""The rate at which an engine computes prompts, learned while it runs: tokens per second of
prefilling.

Prompts share steps, so the seconds in which several were prefilled count once. Otherwise each would
seem as slow as all of them together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

# Number of latest prompts that are used.
MEMORY = 32
# A shorter prompt's time depends on the step, not on its tokens.
TELLING_TOKENS = 64


class PrefillRate:
    def __init__(self) -> None:
        # each prompt's start, end and tokens
        self._prompts: deque[tuple[float, float, int]] = deque(maxlen=MEMORY)

    def add(self, ended_at: float, seconds: float, tokens: int) -> None:
        """Add a prompt of which `tokens` were computed in `seconds`; times of any one clock."""
        if seconds > 0 and tokens >= TELLING_TOKENS:
            self._prompts.append((ended_at - seconds, ended_at, tokens))

    @property
    def mean(self) -> float | None:
        """Return tokens per second; None before the first prompt."""
        seconds, until = 0.0, float("-inf")
        for began, ended, _ in sorted(self._prompts):
            seconds += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return sum(tokens for *_, tokens in self._prompts) / seconds if seconds else None


def queued_tokens(
    waiting: Sequence[tuple[float, int]], first_token_at: float, now: float, rate: float | None
) -> int:
    """Return the prompt tokens still to compute, from prompts without a first token: arrival time
    and tokens of each.

    The oldest come first, as an engine computes them. It has computed the first since its arrival,
    or since another's first token (`first_token_at`, the last), and reports no progress before its
    end. At its `rate` (tokens per second; None: unknown) it has finished at most all except the
    last token. Times of any one clock.
    """
    total = sum(tokens for _, tokens in waiting)
    if not waiting or rate is None:
        return total
    came_at, oldest = waiting[0]
    computed = rate * max(0.0, now - max(came_at, first_token_at))
    return total - int(min(computed, max(0, oldest - 1)))
