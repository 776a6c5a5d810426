"""How fast an engine computes prompts, learned as it runs: tokens per second of prefilling.

Prompts share steps, so the seconds in which several were prefilled count once: each alone would
seem as slow as all of them together.
"""

from __future__ import annotations

from collections import deque

# So many of the latest prompts speak for the engine.
MEMORY = 32
# A shorter prompt's time is the step's own, not its tokens'.
TELLING_TOKENS = 64


class PrefillRate:
    def __init__(self) -> None:
        # when each began and ended, and its tokens
        self._prompts: deque[tuple[float, float, int]] = deque(maxlen=MEMORY)

    def add(self, ended_at: float, seconds: float, tokens: int) -> None:
        """A prompt of which `tokens` were computed in `seconds`; times of any one clock."""
        if seconds > 0 and tokens >= TELLING_TOKENS:
            self._prompts.append((ended_at - seconds, ended_at, tokens))

    @property
    def mean(self) -> float | None:
        """Tokens per second; None before the first prompt."""
        seconds, until = 0.0, float("-inf")
        for began, ended, _ in sorted(self._prompts):
            seconds += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return sum(tokens for *_, tokens in self._prompts) / seconds if seconds else None
