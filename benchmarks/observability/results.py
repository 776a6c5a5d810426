"""From rounds to what each part costs. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.observability.gateway import EXPLANATIONS, METRICS, PARTS, TOKENS
from benchmarks.stand import report

COST_GOAL = 0.02
# How often a Prometheus asks.
SCRAPE_PERIOD_S = 5.0
NOTHING = frozenset[str]()
# Two rounds of the same: what the difference of two rounds comes to where there is none.
CONTROL = "A/A"
# What the goal is about.
BOTH = frozenset({METRICS, EXPLANATIONS})
ONLY_TOKENS = frozenset({TOKENS})
EVERYTHING = frozenset(PARTS)
EACH = (*(frozenset({part}) for part in PARTS), EVERYTHING)


@dataclass(frozen=True)
class MeasuredRound:
    """One round: what was served in how many seconds, with how much of the gateway's CPU."""

    requests: int
    tokens: int
    seconds: float
    cpu_s: float

    @property
    def per_token(self) -> float:
        return self.cpu_s / self.tokens


@dataclass(frozen=True)
class Pair:
    """Two rounds, one after the other: without the `parts`, and with them alone."""

    parts: frozenset[str]
    without: MeasuredRound
    there: MeasuredRound

    @property
    def cost(self) -> float:
        """CPU seconds per token, as a share of what they are without."""
        return self.there.per_token / self.without.per_token - 1


@dataclass(frozen=True)
class Scrapes:
    """Of each: CPU and wall seconds, and how many series it tells."""

    cpu_s: float
    seconds: float
    series: int

    @property
    def share(self) -> float:
        """Of one core, which is all that a gateway can use."""
        return self.cpu_s / SCRAPE_PERIOD_S


@dataclass(frozen=True)
class ObservabilityResult:
    pairs: Sequence[Pair]
    scrapes: Scrapes

    def of(self, parts: frozenset[str]) -> list[Pair]:
        return [pair for pair in self.pairs if pair.parts == parts]

    @property
    def variants(self) -> list[frozenset[str]]:
        """What was measured, each once."""
        return sorted(
            {pair.parts for pair in self.pairs}, key=lambda parts: (len(parts), _name(parts))
        )


@dataclass(frozen=True)
class Cost:
    """Of some parts: share of what the gateway uses without them; 95 % sure from low to high."""

    share: float
    low: float
    high: float
    us_per_request: float


def cost_of(found: ObservabilityResult, parts: frozenset[str]) -> Cost:
    """The median over the pairs, and what it may be: by ranks, whatever the distribution."""
    pairs = found.of(parts)
    shares = sorted(pair.cost for pair in pairs)
    count, middle = len(shares), statistics.median(shares)
    away = 0.98 * math.sqrt(count)
    low = shares[max(0, math.floor((count - 1) / 2 - away))]
    high = shares[min(count - 1, math.ceil((count - 1) / 2 + away))]
    per_request = statistics.median(pair.without.cpu_s / pair.without.requests for pair in pairs)
    return Cost(middle, low, high, 1e6 * middle * per_request)


def goals(found: ObservabilityResult) -> dict[str, Any]:
    share = cost_of(found, BOTH).share + found.scrapes.share
    tokens = cost_of(found, ONLY_TOKENS).share
    return {
        "cost_share": report.goal(share, at_most=COST_GOAL),
        "tokens_cost_share": report.goal(tokens, at_most=COST_GOAL),
    }


def figures(found: ObservabilityResult) -> dict[str, Any]:
    costs = {_name(parts): cost_of(found, parts) for parts in found.variants}
    both, scrapes = found.of(BOTH), found.scrapes
    without, there = [pair.without for pair in both], [pair.there for pair in both]
    return {
        "cost_share": {name: round(cost.share, 4) for name, cost in costs.items()},
        "cost_95_percent_sure": {
            name: [round(cost.low, 4), round(cost.high, 4)] for name, cost in costs.items()
        },
        "cost_us_per_request": {name: round(cost.us_per_request) for name, cost in costs.items()},
        "scrape_share": round(scrapes.share, 5),
        "scrape_cpu_ms": round(1000 * scrapes.cpu_s, 2),
        "scrape_series": scrapes.series,
        "tokens_per_s_without": round(tokens_per_s(without)),
        "tokens_per_s_with": round(tokens_per_s(there)),
        "requests_per_s_without": round(_median(lambda m: m.requests / m.seconds, without), 1),
        "requests_per_s_with": round(_median(lambda m: m.requests / m.seconds, there), 1),
        "cpu_us_per_token_without": round(us_per_token(without), 2),
        "cpu_us_per_token_with": round(us_per_token(there), 2),
        "share_of_a_core_used": round(_median(lambda m: m.cpu_s / m.seconds, there), 3),
    }


def table(found: ObservabilityResult) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    rows = [("What", "Cost", "95 % sure", "CPU time")]
    for parts in found.variants:
        cost = cost_of(found, parts)
        surely = f"{cost.low:.1%} to {cost.high:.1%}"
        rows.append((_name(parts), f"{cost.share:.1%}", surely, f"{cost.us_per_request:.0f} µs"))
    cpu_ms = 1000 * found.scrapes.cpu_s
    rows.append(("scrapes", f"{found.scrapes.share:.1%}", "", f"{cpu_ms:.1f} ms each"))
    return report.padded(rows)


def tokens_per_s(rounds: Sequence[MeasuredRound]) -> float:
    return _median(lambda m: m.tokens / m.seconds, rounds)


def us_per_token(rounds: Sequence[MeasuredRound]) -> float:
    return 1e6 * _median(lambda m: m.per_token, rounds)


def _name(parts: frozenset[str]) -> str:
    return " + ".join(part for part in PARTS if part in parts) or CONTROL


def _median(figure: Callable[[MeasuredRound], float], rounds: Sequence[MeasuredRound]) -> float:
    return statistics.median(map(figure, rounds))
