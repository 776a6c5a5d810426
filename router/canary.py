"""Whether a canary is worse than its base: a sequential test of each request as it ends. Pure.

A canary and its base get conversations at random, so without a difference their requests have one
distribution. Each fact of a request is a bet against that: TTFT or TPOT above the base's 90th
percentile, a failure, an answer that ended for another reason. A bettor against a true
hypothesis reaches a wealth of 1/alpha with a probability of at most alpha, however long he plays
(Ville's inequality; Shafer 2021, "Testing by betting"). Wealths of gateways
multiply, because their requests are different ones; so each gateway reports logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Above the base's percentile are a tenth of all, and with TOLERANCE fewer; the rest is for the
# percentile's own error.
SLOWER_BY_CHANCE, SLOWER_IF_WORSE = 0.15, 0.7
# Times that are longer than the base's percentile by less may come from another load.
TOLERANCE = 1.25
PERCENTILE = 90.0
# A base with fewer requests says nothing of how long they take.
LEAST_OF_BASE = 50


@dataclass(frozen=True)
class Bet:
    """On a fact that is true with a probability of at most `by_chance` where nothing is wrong, and
    of about `if_worse` where it is. Both are between 0 and 1."""

    by_chance: float
    if_worse: float

    def log_growth(self, is_true: bool) -> float:
        """By what the logarithm of the wealth changes with one request."""
        if is_true:
            return math.log(self.if_worse / self.by_chance)
        return math.log((1 - self.if_worse) / (1 - self.by_chance))


@dataclass(frozen=True)
class CanaryRule:
    """`alpha`: the chance to take back a canary that is as its base, at most, over its whole life.
    `error_rate`: what share of its requests may fail."""

    alpha: float = 0.01
    error_rate: float = 0.01

    def bets(self) -> Mapping[str, Bet]:
        """By the fact that they are on."""
        slower = Bet(SLOWER_BY_CHANCE, SLOWER_IF_WORSE)
        failed = Bet(self.error_rate, min(0.5, max(0.05, 5 * self.error_rate)))
        return {"ttft": slower, "tpot": slower, "errors": failed}

    @property
    def log_limit(self) -> float:
        """Of each bet: their chances to be wrong add up to `alpha`."""
        return math.log(len(self.bets()) / self.alpha)


@dataclass(frozen=True)
class EndedRequest:
    """Seconds; None: it has none. `failed`: by the fault of the fleet."""

    ttft_s: float | None
    tpot_s: float | None
    failed: bool


@dataclass(frozen=True)
class BaseTimes:
    """The base's 90th percentiles, in seconds; None: it had too few requests."""

    ttft_s: float | None
    tpot_s: float | None


def facts_of(request: EndedRequest, base: BaseTimes) -> dict[str, bool]:
    """What a canary's request says, by the bet that it is for; nothing where it says nothing."""
    facts = {"errors": request.failed}
    for name, time_s, most_s in (
        ("ttft", request.ttft_s, base.ttft_s),
        ("tpot", request.tpot_s, base.tpot_s),
    ):
        if time_s is not None and most_s is not None:
            facts[name] = time_s > TOLERANCE * most_s
    return facts


def worse_in(log_wealths: Iterable[Mapping[str, float]], rule: CanaryRule) -> str | None:
    """Return in what the canary is worse, by what each gateway has won; None: not known to be."""
    sums: dict[str, float] = {}
    for won in log_wealths:
        for name, log_wealth in won.items():
            sums[name] = sums.get(name, 0.0) + log_wealth
    worst = max(sums, key=sums.__getitem__, default=None)
    return worst if worst is not None and sums[worst] >= rule.log_limit else None
