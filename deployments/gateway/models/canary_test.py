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
from dataclasses import dataclass, field

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
    "reasons": "rate of unusual finish reasons",
}
# How `alpha` is divided among the bets. Finish reasons get little, so that they hardly delay the
# others.
SHARES = {"ttft": 0.325, "tpot": 0.325, "errors": 0.325, "reasons": 0.025}
# Of a base whose answers end so variously, the reason says nothing.
MOST_UNUSUAL = 0.8

# Logarithms of what one gateway's bets have won, by fact and epoch.
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


# Above the base's percentile are a tenth of all, and with TOLERANCE fewer; the rest is for the
# percentile's own error.
SLOWER = Bet(by_chance=0.15, if_worse=0.75)


@dataclass(frozen=True)
class CanaryRule:
    """`alpha`: the chance to take back a canary that is as its base, at most, over its whole life.
    `error_rate`: what share of its requests may fail."""

    alpha: float = 0.01
    error_rate: float = 0.01

    @property
    def failed(self) -> Bet:
        return Bet(self.error_rate, min(0.5, max(0.05, 5 * self.error_rate)))

    def log_limit(self, name: str) -> float:
        """Return a bet's limit. The chances of all bets to be wrong add up to `alpha`."""
        return -math.log(SHARES[name] * self.alpha)


@dataclass(frozen=True)
class EndedRequest:
    """Seconds; None: it has none. `failed`: by the fault of the fleet. `finish_reason`: why its
    answer ended, empty if unknown."""

    ttft_s: float | None
    tpot_s: float | None
    failed: bool
    finish_reason: str = ""


@dataclass(frozen=True)
class RecentBase:
    """Recent requests of the base: their 90th percentiles in seconds, None if they are too few, and
    how many ended for which reason."""

    ttft_s: float | None
    tpot_s: float | None
    finish_reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def usual(self) -> tuple[str, Bet] | None:
        """The most frequent finish reason, and a bet on another. None: too few answers are known,
        or they end too variously.

        The share of others is increased by three standard deviations of its estimate, and by three
        answers.
        """
        answers = sum(self.finish_reasons.values())
        if answers < LEAST_OF_BASE:
            return None
        reason = max(self.finish_reasons, key=self.finish_reasons.__getitem__)
        others = 1 - self.finish_reasons[reason] / answers
        most = others + 3 * math.sqrt(others * (1 - others) / answers) + 3 / answers
        return (reason, Bet(most, min(5 * most, (1 + most) / 2))) if most < MOST_UNUSUAL else None


def won_by(request: EndedRequest, base: RecentBase, rule: CanaryRule) -> dict[str, float]:
    """Return by what a canary's request changes the logarithm of each bet's wealth; bets that it
    says nothing about are left out."""
    won = {"errors": rule.failed.log_growth(request.failed)}
    for name, time_s, most_s in (
        ("ttft", request.ttft_s, base.ttft_s),
        ("tpot", request.tpot_s, base.tpot_s),
    ):
        if time_s is not None and most_s is not None:
            won[name] = SLOWER.log_growth(time_s > TOLERANCE * most_s)
    if request.finish_reason and (usual := base.usual) is not None:
        reason, bet = usual
        won["reasons"] = bet.log_growth(request.finish_reason != reason)
    return won


def epoch_of(begun: float, now: float) -> int:
    """The number of an epoch of a canary that began then."""
    return max(0, int((now - begun) / EPOCH_S))


def add(log_wealths: LogWealths, won: Mapping[str, float], epoch: int) -> None:
    """Count what a request says, in this epoch; old epochs become one with the first."""
    for name, log_growth in won.items():
        by_epoch = log_wealths.setdefault(name, {})
        by_epoch[epoch] = by_epoch.get(epoch, 0.0) + log_growth
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
    above = {
        name: _mixed(by_epoch, epoch) - rule.log_limit(name) for name, by_epoch in sums.items()
    }
    worst = max(above, key=above.__getitem__, default=None)
    return WORDS[worst] if worst is not None and above[worst] >= 0 else None


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
