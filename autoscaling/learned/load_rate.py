"""The rate at which an engine loads from a tier of its KV cache, learned while it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from autoscaling.learned.ewma import Ewma

LOAD_TOKENS = 20_000.0
# A rate without a load for this time is unknown again, so that a slow tier is tried again.
FORGOTTEN_S = 600.0


class LoadRate:
    """How fast an engine gets tokens from a tier, over about its last LOAD_TOKENS."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token_s = Ewma(memory=LOAD_TOKENS)
        self._spent_s = 0.0
        self._loaded_at = -math.inf

    @property
    def rate(self) -> float:
        """Tokens per second; 0 before the first, and FORGOTTEN_S after the last."""
        if self._clock() - self._loaded_at > FORGOTTEN_S or not self._token_s.mean:
            return 0.0
        return 1.0 / self._token_s.mean

    def spent(self, seconds: Mapping[Any, float]) -> None:
        """Count seconds of loads, by vLLM's labels, whose tokens are counted later."""
        self._spent_s += sum(seconds.values())

    def loaded(self, tokens: int) -> None:
        """Count tokens that were loaded in the seconds counted before."""
        if self.rate == 0.0:
            self._token_s = Ewma(memory=LOAD_TOKENS)
        self._token_s.add(self._spent_s, tokens)
        self._spent_s, self._loaded_at = 0.0, self._clock()
