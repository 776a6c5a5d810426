"""Whether a canary is worse than its base: a sequential test of each request as it ends. Pure.

A canary and its base get conversations at random, so without a difference their requests have one
distribution. Each fact of a request is a bet against that: TTFT or TPOT above the base's 90th
percentile, a failure, an answer that ended for another reason. A bettor against a true
hypothesis reaches a wealth of 1/alpha with a probability of at most alpha, however long he plays
(Ville's inequality; Shafer 2021, "Testing by betting"). Wealths of gateways
multiply, because their requests are different ones; so each gateway reports logarithms.

A canary may become worse late, when the bettor has lost all. So one bettor begins in each epoch,
and their wealths are added, weighted by shares that sum to 1. The sum obeys the same inequality.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Above the base's percentile are a tenth of all, and with TOLERANCE fewer; the rest is for the
# percentile's own error.
SLOWER_BY_CHANCE, SLOWER_IF_WORSE = 0.15, 0.75
# Times that are longer than the base's percentile by less may come from another load.
TOLERANCE = 1.25
PERCENTILE = 90.0
# A base with fewer requests says nothing of how long they take.
LEAST_OF_BASE = 50
EPOCH_S, KEPT_EPOCHS = 5.0, 120
WORDS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "errors": "rate of errors",
}

# Of one gateway: logarithms of what its bets have won, by fact and epoch.
LogWealths = dict[str, dict[int, float]]


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


def epoch_of(begun: float, now: float) -> int:
    """The number of an epoch of a canary that began then."""
    return max(0, int((now - begun) / EPOCH_S))


def add(log_wealths: LogWealths, facts: Mapping[str, bool], rule: CanaryRule, epoch: int) -> None:
    """Count what a request says, in this epoch; old epochs become one with the first."""
    bets = rule.bets()
    for name, is_true in facts.items():
        by_epoch = log_wealths.setdefault(name, {})
        by_epoch[epoch] = by_epoch.get(epoch, 0.0) + bets[name].log_growth(is_true)
        for old in [one for one in by_epoch if 0 < one <= epoch - KEPT_EPOCHS]:
            by_epoch[0] = by_epoch.get(0, 0.0) + by_epoch.pop(old)


def worse_in(of_gateways: Iterable[LogWealths], rule: CanaryRule, epoch: int) -> str | None:
    """Return in what the canary is worse, in words, by what each gateway has won; None: not known
    to be."""
    sums: dict[str, dict[int, float]] = {}
    for log_wealths in of_gateways:
        for name, by_epoch in log_wealths.items():
            of_name = sums.setdefault(name, {})
            for one, log_wealth in by_epoch.items():
                of_name[one] = of_name.get(one, 0.0) + log_wealth
    won = {name: _mixed(by_epoch, epoch) for name, by_epoch in sums.items()}
    worst = max(won, key=won.__getitem__, default=None)
    return WORDS[worst] if worst is not None and won[worst] >= rule.log_limit else None


def _mixed(by_epoch: Mapping[int, float], epoch: int) -> float:
    """The logarithm of the wealth of all bettors, of whom one begins in each epoch. Those whose
    epoch some gateway may have merged are left out, which only makes it smaller."""
    won, logs = 0.0, []
    for start in sorted(by_epoch, reverse=True):
        won += by_epoch[start]
        if start == 0 or start > epoch - KEPT_EPOCHS + 2:
            logs.append(won - math.log((start + 1) * (start + 2)))
    most = max(logs, default=-math.inf)
    return most + math.log(sum(math.exp(log - most) for log in logs)) if logs else most
