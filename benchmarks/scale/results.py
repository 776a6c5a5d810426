"""From what became of the requests to figures. Pure.

Hits, loads and times are of the requests that came after the warm-up.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.scale.fleet import Visit
from benchmarks.stand import report
from benchmarks.stand.variation import variation
from common.percentiles import percentile

HEADINGS = (
    "Replicas", "Gateways", "Requests/s", "Requests", "Policy", "Cached", "Of oracle", "Of ceiling",
    "Mean TTFT, s", "p50", "p99", "CoV requests", "CoV tokens", "CoV in flight", "Decision, ms",
)  # fmt: skip


@dataclass(frozen=True)
class FleetCase:
    """One simulation: `rate` is requests a second over all replicas."""

    workload: str
    policy: str
    replicas: int
    gateways: int
    rate: float


@dataclass(frozen=True)
class FleetSummary:
    """Seconds; shares of prompt tokens; coefficients of variation over the replicas.

    `most_requests`: of a replica, by the mean of all. `decision_s`: the median of what a decision
    took in reality; 0: no code of ours decided.
    """

    case: FleetCase
    requests: int
    cached_ratio: float
    ceiling_ratio: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    variation_requests: float
    variation_tokens: float
    variation_in_flight: float
    most_requests: float
    decision_s: float
    wall_s: float

    @property
    def of_ceiling(self) -> float:
        return share(self.cached_ratio, self.ceiling_ratio)


def share(of: float, whole: float) -> float:
    """1 of nothing: there was nothing to lose."""
    return of / whole if whole else 1.0


def summary(
    case: FleetCase,
    visits: Sequence[Visit],
    most_cached: Sequence[int],
    warm_up: float,
    decision_s: Sequence[float],
    wall_s: float,
) -> FleetSummary:
    """`most_cached`: of each request (`traffic.ceiling`). `warm_up`: share of the requests."""
    begin = int(warm_up * len(visits))
    counted = visits[begin:]
    prompt_tokens = sum(visit.request.prompt_tokens for visit in counted)
    since, until = counted[0].request.at, visits[-1].request.at
    ttfts = [visit.ttft_s for visit in counted]

    def over_replicas(amounts: Sequence[float], of: Sequence[Visit]) -> float:
        named = ((str(v.replica), amount) for v, amount in zip(of, amounts, strict=True))
        return variation(named, case.replicas)

    computed = [float(v.request.prompt_tokens - v.job.cached_tokens) for v in counted]
    present = [max(0.0, min(v.ended_at, until) - max(v.request.at, since)) for v in visits]
    return FleetSummary(
        case=case,
        requests=len(counted),
        cached_ratio=sum(visit.job.cached_tokens for visit in counted) / prompt_tokens,
        ceiling_ratio=sum(most_cached[begin:]) / prompt_tokens,
        ttft_mean_s=statistics.fmean(ttfts),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        variation_requests=over_replicas([1.0] * len(counted), counted),
        variation_tokens=over_replicas(computed, counted),
        variation_in_flight=over_replicas(present, visits),
        most_requests=max(Counter(v.replica for v in counted).values())
        * (case.replicas / len(counted)),
        decision_s=percentile(decision_s, 50) if decision_s else 0.0,
        wall_s=wall_s,
    )


def oracle_of(found: Sequence[FleetSummary], summary: FleetSummary) -> float | None:
    """The share that the oracle had of the same requests on as many replicas."""
    case = summary.case
    for other in found:
        of = other.case
        if of.policy == "oracle" and (of.workload, of.replicas, of.rate) == (
            case.workload,
            case.replicas,
            case.rate,
        ):
            return other.cached_ratio
    return None


def as_json(found: Sequence[FleetSummary]) -> dict[str, Mapping[str, float]]:
    told: dict[str, Mapping[str, float]] = {}
    for s in found:
        case = s.case
        name = f"{case.workload}/{case.replicas}/{case.gateways}/{case.rate:g}/{case.policy}"
        told[name] = {
            "requests": s.requests,
            "cached_ratio": round(s.cached_ratio, 4),
            "of_ceiling": round(s.of_ceiling, 4),
            "ttft_mean_s": round(s.ttft_mean_s, 3),
            "ttft_p50_s": round(s.ttft_p50_s, 3),
            "ttft_p90_s": round(s.ttft_p90_s, 3),
            "ttft_p99_s": round(s.ttft_p99_s, 3),
            "variation_requests": round(s.variation_requests, 4),
            "variation_tokens": round(s.variation_tokens, 4),
            "variation_in_flight": round(s.variation_in_flight, 4),
            "most_requests": round(s.most_requests, 3),
            "decision_ms_p50": round(1000 * s.decision_s, 3),
            "wall_s": round(s.wall_s, 1),
        }
    return told


def table(found: Sequence[FleetSummary]) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    return report.padded([HEADINGS, *(_row(s, oracle_of(found, s)) for s in found)])


def _row(s: FleetSummary, oracle: float | None) -> tuple[str, ...]:
    return (
        f"{s.case.replicas:,}",
        str(s.case.gateways),
        f"{s.case.rate:g}",
        f"{s.requests:,}",
        s.case.policy,
        f"{s.cached_ratio:.3f}",
        "" if oracle is None else f"{share(s.cached_ratio, oracle):.3f}",
        f"{s.of_ceiling:.3f}",
        f"{s.ttft_mean_s:.2f}",
        f"{s.ttft_p50_s:.2f}",
        f"{s.ttft_p99_s:.2f}",
        f"{s.variation_requests:.3f}",
        f"{s.variation_tokens:.3f}",
        f"{s.variation_in_flight:.3f}",
        f"{1000 * s.decision_s:.2f}" if s.decision_s else "",
    )
