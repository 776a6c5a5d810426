"""What happened to the requests of a simulation, as figures. Pure.

Hits, loads and times are of the requests that came after the warm-up.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.scale.fleet import Visit
from benchmarks.stand.variation import variation
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
    """Seconds; shares of prompt tokens; coefficients of variation over the replicas.

    `of_ceiling`: cached tokens, divided by `traffic.ceiling`. `most_requests`: the most that one
    replica got, divided by the mean. `decision_ms_p50`: real time; 0 where Antefix did not decide.
    """

    case: FleetCase
    requests: int
    cached_ratio: float
    of_ceiling: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    variation_requests: float
    variation_tokens: float
    variation_in_flight: float
    most_requests: float
    decision_ms_p50: float
    wall_s: float


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
    cached, most = sum(visit.job.cached_tokens for visit in counted), sum(most_cached[begin:])
    return FleetSummary(
        case=case,
        requests=len(counted),
        cached_ratio=cached / prompt_tokens,
        of_ceiling=cached / most if most else 1.0,
        ttft_mean_s=statistics.fmean(ttfts),
        ttft_p50_s=percentile(ttfts, 50),
        ttft_p90_s=percentile(ttfts, 90),
        ttft_p99_s=percentile(ttfts, 99),
        variation_requests=over_replicas([1.0] * len(counted), counted),
        variation_tokens=over_replicas(computed, counted),
        variation_in_flight=over_replicas(present, visits),
        most_requests=max(Counter(v.replica for v in counted).values())
        * (case.replicas / len(counted)),
        decision_ms_p50=1000 * percentile(decision_s, 50) if decision_s else 0.0,
        wall_s=wall_s,
    )


def as_json(found: Sequence[FleetSummary]) -> dict[str, dict[str, float]]:
    """By the case's name."""
    return {
        s.case.name: {name: round(of, 4) for name, of in vars(s).items() if name != "case"}
        for s in found
    }


def read(told: Mapping[str, Mapping[str, float]]) -> list[FleetSummary]:
    """What `as_json` returned."""
    found = []
    for name, figures in told.items():
        workload, replicas, gateways, rate, policy = name.split("/")
        case = FleetCase(workload, policy, int(replicas), int(gateways), float(rate))
        found.append(msgspec.convert({"case": case, **figures}, FleetSummary))
    return found
