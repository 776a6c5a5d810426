"""What each part costs, from rounds without it and with it. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.observability.gateway import EXPLANATIONS, METRICS, PARTS, TOKENS
from benchmarks.stand import report

COST_GOAL = 0.02
# How often Prometheus scrapes.
SCRAPE_PERIOD_S = 5.0
NOTHING = frozenset[str]()
# The name of two rounds of the same: their difference is what chance adds.
CONTROL = "A/A"
# What the goals are about.
BOTH, ONLY_TOKENS = frozenset({METRICS, EXPLANATIONS}), frozenset({TOKENS})
VARIANTS = (NOTHING, BOTH, ONLY_TOKENS)


@dataclass(frozen=True)
class MeasuredRound:
    """What was served in `seconds`, with `cpu_s` of the gateway's CPU."""

    requests: int
    tokens: int
    seconds: float
    cpu_s: float

    @property
    def per_token(self) -> float:
        return self.cpu_s / self.tokens


@dataclass(frozen=True)
class Pair:
    """Two rounds, one after the other: without the `parts`, and with only them."""

    parts: frozenset[str]
    without: MeasuredRound
    there: MeasuredRound

    @property
    def cost(self) -> float:
        """The CPU time per token that the parts add, as a share of that without them."""
        return self.there.per_token / self.without.per_token - 1


@dataclass(frozen=True)
class ObservabilityResult:
    """`scrape_cpu_s`: of one scrape, which returns `scrape_series`."""

    pairs: Sequence[Pair]
    scrape_cpu_s: float
    scrape_series: int

    @property
    def scrape_share(self) -> float:
        """Return the share of one core."""
        return self.scrape_cpu_s / SCRAPE_PERIOD_S

    def of(self, parts: frozenset[str]) -> list[Pair]:
        return [pair for pair in self.pairs if pair.parts == parts]


@dataclass(frozen=True)
class Cost:
    """A share of the gateway's CPU time without these parts, with its 95 % interval."""

    share: float
    low: float
    high: float
    us_per_request: float


def cost_of(found: ObservabilityResult, parts: frozenset[str]) -> Cost:
    """The median over the pairs; its interval is by ranks, whatever the distribution."""
    pairs = found.of(parts)
    shares = sorted(pair.cost for pair in pairs)
    count, middle = len(shares), statistics.median(shares)
    ranks = 0.98 * math.sqrt(count)
    low = shares[max(0, math.floor((count - 1) / 2 - ranks))]
    high = shares[min(count - 1, math.ceil((count - 1) / 2 + ranks))]
    per_request = statistics.median(pair.without.cpu_s / pair.without.requests for pair in pairs)
    return Cost(middle, low, high, 1e6 * middle * per_request)


def goals(found: ObservabilityResult) -> dict[str, Any]:
    share = cost_of(found, BOTH).share + found.scrape_share
    tokens = cost_of(found, ONLY_TOKENS).share
    return {
        "cost_share": report.goal(share, at_most=COST_GOAL),
        "tokens_cost_share": report.goal(tokens, at_most=COST_GOAL),
    }


def figures(found: ObservabilityResult) -> dict[str, Any]:
    costs = {_name(parts): cost_of(found, parts) for parts in VARIANTS}
    both = found.of(BOTH)

    def median(figure: Callable[[MeasuredRound], float], digits: int | None = None) -> list[float]:
        rounds = ([pair.without for pair in both], [pair.there for pair in both])
        return [round(statistics.median(map(figure, of)), digits) for of in rounds]

    tokens_per_s = median(lambda of: of.tokens / of.seconds)
    us_per_token = median(lambda of: 1e6 * of.per_token, 2)
    return {
        "cost_share": {name: round(cost.share, 4) for name, cost in costs.items()},
        "cost_95_percent_sure": {
            name: [round(cost.low, 4), round(cost.high, 4)] for name, cost in costs.items()
        },
        "cost_us_per_request": {name: round(cost.us_per_request) for name, cost in costs.items()},
        "scrape_share": round(found.scrape_share, 5),
        "scrape_cpu_ms": round(1000 * found.scrape_cpu_s, 2),
        "scrape_series": found.scrape_series,
        "tokens_per_s_without": tokens_per_s[0],
        "tokens_per_s_with": tokens_per_s[1],
        "cpu_us_per_token_without": us_per_token[0],
        "cpu_us_per_token_with": us_per_token[1],
    }


def _name(parts: frozenset[str]) -> str:
    return " + ".join(part for part in PARTS if part in parts) or CONTROL
