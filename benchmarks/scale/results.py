"""What happened to the requests of a simulation, as figures. Pure.

Hits, loads and times are of the requests that came after the warm-up.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.scale.fleet import Visit
from common.percentiles import percentile


@dataclass(frozen=True)
class FleetCase:
    """One simulation: `rate` is requests a second over all replicas."""

    workload: str
    policy: str
    replicas: int
    gateways: int
    rate: float

    @property
    def name(self) -> str:
        return f"{self.workload}/{self.replicas}/{self.gateways}/{self.rate:g}/{self.policy}"


@dataclass(frozen=True)
class FleetSummary:
    """Seconds; shares of prompt tokens; a coefficient of variation over the replicas.

    `of_ceiling`: cached tokens, divided by `traffic.ceiling`. `most_requests`: the most that one
    replica got, divided by the mean. `decision_ms_p50`: real time; 0 where Antefix did not decide.
    """

    case: FleetCase
    requests: int
    cached_ratio: float
    of_ceiling: float
    ttft_mean_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    variation_requests: float
    most_requests: float
    decision_ms_p50: float


def summary(
    case: FleetCase,
    visits: Sequence[Visit],
    most_cached: Sequence[int],
    warm_up: float,
    decision_s: Sequence[float],
) -> FleetSummary:
    """`most_cached`: of each request (`traffic.ceiling`). `warm_up`: share of the requests."""
    begin = int(warm_up * len(visits))
    counted = visits[begin:]
    ttfts = [visit.ttft_s for visit in counted]
    cached, most = sum(visit.job.cached_tokens for visit in counted), sum(most_cached[begin:])
    requests = Counter(str(visit.replica) for visit in counted)
    return FleetSummary(
        case=case,
        requests=len(counted),
        cached_ratio=cached / sum(visit.request.prompt_tokens for visit in counted),
        of_ceiling=cached / most if most else 1.0,
        ttft_mean_s=statistics.fmean(ttfts),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        variation_requests=variation(requests.items(), case.replicas),
        most_requests=max(requests.values()) * case.replicas / len(counted),
        decision_ms_p50=1000 * percentile(decision_s, 50) if decision_s else 0.0,
    )


def as_json(found: Sequence[FleetSummary]) -> dict[str, dict[str, float]]:
    """By the case's name."""
    return {
        s.case.name: {name: round(of, 4) for name, of in vars(s).items() if name != "case"}
        for s in found
    }


def variation(amounts: Iterable[tuple[str, float]], replicas: int) -> float:
    """Standard deviation over mean of the sums per replica; unnamed replicas have 0."""
    sums: dict[str, float] = defaultdict(float)
    for replica, amount in amounts:
        sums[replica] += amount
    shares = [*sums.values(), *[0.0] * (replicas - len(sums))]
    mean = statistics.fmean(shares)
    return statistics.pstdev(shares) / mean if mean else 0.0
