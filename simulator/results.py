"""Results of a backtest's simulations, by policy. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from statistics import fmean
from typing import Any

from common.percentiles import P99_SAMPLES, percentile
from simulator.types import Result

# Two opposite changes of the number of replicas within this time are a flap.
FLAP_S = 300.0
BIN_S = 60.0
ARRIVALS_BIN_S = 20
HEADINGS = (
    "Policy",
    "Attained",
    "Misses",
    "TTFT p50, s",
    "p90",
    "p99",
    "Replica-hours",
    "Replicas",
    "429s",
    "Overflow",
    "Changes",
    "Flaps",
)


@dataclass(frozen=True)
class SimulationSummary:
    """One policy on one trace, or the mean of several.

    `attainment`: the share of all requests, including rejected and overflowed ones, that the pool
    served within the SLO. TTFTs are those of admitted requests, in seconds, 0 if there are none;
    there is no p99 with fewer than 300.
    """

    requests: float
    attainment: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float | None
    replica_hours: float
    average_replicas: float
    rejected: float
    overflow_share: float
    changes: float
    flaps: float

    @property
    def misses(self) -> float:
        """Requests that the pool did not serve within the SLO."""
        return self.requests * (1.0 - self.attainment)

    def as_dict(self) -> dict[str, float]:
        figures = {**asdict(self), "misses": self.misses}
        return {name: round(figure, 4) for name, figure in figures.items() if figure is not None}


@dataclass(frozen=True)
class Total:
    """One policy over several traces."""

    requests: float
    misses: float
    replica_hours: float

    @property
    def attainment(self) -> float:
        return 1.0 - self.misses / max(1.0, self.requests)


def totals(means: Sequence[Mapping[str, SimulationSummary]]) -> dict[str, Total]:
    """Return totals of the policies that every trace was played under.

    `means`: policy -> figures, one per trace. Raises ValueError without traces.
    """
    if not means:
        raise ValueError("no trace was played")
    return {
        policy: Total(
            sum(of[policy].requests for of in means),
            sum(of[policy].misses for of in means),
            sum(of[policy].replica_hours for of in means),
        )
        for policy in means[0]
        if all(policy in of for of in means)
    }


def summary(result: Result) -> SimulationSummary:
    calls = result.calls
    admitted = sorted(c.ttft for c in calls if c.first_at is not None and not c.overflowed)
    changes = [
        (later.at, later.target - earlier.target)
        for earlier, later in pairwise(result.samples)
        if later.target != earlier.target
    ]
    flaps = sum(
        (up > 0) != (before_up > 0) and at - before <= FLAP_S
        for (before, before_up), (at, up) in pairwise(changes)
    )
    return SimulationSummary(
        requests=len(calls),
        attainment=result.attainment,
        ttft_p50_s=percentile(admitted, 50) if admitted else 0.0,
        ttft_p90_s=percentile(admitted, 90) if admitted else 0.0,
        ttft_p99_s=percentile(admitted, 99) if len(admitted) >= P99_SAMPLES else None,
        replica_hours=result.replica_seconds / 3600,
        average_replicas=result.average_replicas,
        rejected=sum(call.rejected_at is not None for call in calls),
        overflow_share=sum(call.overflowed for call in calls) / max(1, len(calls)),
        changes=len(changes),
        flaps=flaps,
    )


def mean(of: Sequence[SimulationSummary]) -> SimulationSummary:
    """Return the mean of each figure; one that some lack has none. Raises StatisticsError for no
    summary."""
    means: dict[str, Any] = {}
    for name in (f.name for f in fields(SimulationSummary)):
        figures = [getattr(s, name) for s in of]
        means[name] = None if None in figures else fmean(figures)
    return SimulationSummary(**means)


def attainment_over_time(result: Result) -> list[tuple[float, float]]:
    """Return, for each minute with arrivals, its middle and the share of them that was attained."""
    bins: dict[int, list[bool]] = {}
    for call in result.calls:
        bins.setdefault(int(call.request.at // BIN_S), []).append(result.attained(call))
    return [((number + 0.5) * BIN_S, fmean(found)) for number, found in sorted(bins.items())]


def arrivals_over_time(result: Result) -> list[tuple[float, float]]:
    """Return requests per second, at the middle of each ARRIVALS_BIN_S."""
    begins = range(0, math.ceil(result.trace.seconds), ARRIVALS_BIN_S)
    counts = Counter(int(call.request.at // ARRIVALS_BIN_S) for call in result.calls)
    points = []
    for number, begin in enumerate(begins):
        width = min(ARRIVALS_BIN_S, result.trace.seconds - begin)
        points.append((begin + width / 2, counts[number] / width))
    return points


def table(found: Mapping[str, SimulationSummary]) -> str:
    """Return policies and figures as Markdown, padded for a terminal."""
    rows = [HEADINGS, *(_row(policy, s) for policy, s in found.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADINGS))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " -- |" * len(HEADINGS), *lines[1:]])


def _row(policy: str, s: SimulationSummary) -> tuple[str, ...]:
    return (
        policy,
        f"{s.attainment:.2%}",
        f"{s.misses:,.0f}",
        f"{s.ttft_p50_s:.2f}",
        f"{s.ttft_p90_s:.2f}",
        "" if s.ttft_p99_s is None else f"{s.ttft_p99_s:.2f}",
        f"{s.replica_hours:.2f}",
        f"{s.average_replicas:.2f}",
        f"{s.rejected:.0f}",
        f"{s.overflow_share:.1%}",
        f"{s.changes:.0f}",
        f"{s.flaps:.0f}",
    )


def as_json(found: Mapping[str, SimulationSummary]) -> dict[str, Any]:
    return {policy: s.as_dict() for policy, s in found.items()}
