"""From what the gateways saw to figures and goals. Pure.

Only requests due after the warm-up count. A replica's load is the requests it served, as in
benchmarks/routing/results.py; beside it stand the prompt tokens it had to compute, and the
requests it had in flight, waiting and running, on average over the measured time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.stand import report
from benchmarks.stand.arrivals import Arrival, Span
from benchmarks.stand.variation import variation
from common.percentiles import Tail, percentile

RATIO_LOSS_GOAL = 0.02
VARIATION_GOAL = 0.05

HEADINGS = (
    "Gateways", "Index", "Requests", "Cached", "Of ceiling", "Mean TTFT, ms", "Tail",
    "CoV requests", "CoV tokens", "CoV in flight", "Placed in, ms", "No answer",
    "Late, ms", "Failed",
)  # fmt: skip


@dataclass(frozen=True)
class ServedRequest:
    """One request, in seconds. `due` and `ended` count from the run's start, `ttft` from when the
    request was due; `late` is how late it was taken up, `placed_in` what deciding took."""

    due: float
    replica: str
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    predicted_ttft_s: float
    late: float
    placed_in: float
    ttft: float
    ended: float


@dataclass(frozen=True)
class GatewayReport:
    """`failed` requests got no answer; `unanswered` lookups no reply in time, or were not made."""

    served: list[ServedRequest]
    failed: int
    lookups: int
    unanswered: int
    cpu_s: float


@dataclass(frozen=True)
class GatewaysRun:
    """One run as its gateways saw it; `since` to `until`: the measured seconds from its start."""

    gateways: int
    shared: bool
    replicas: int
    since: float
    until: float
    ceiling: float
    reports: tuple[GatewayReport, ...]
    engines_late: Tail
    engines_cpu_s: float

    @property
    def served(self) -> list[ServedRequest]:
        return [s for report in self.reports for s in report.served if s.due >= self.since]


@dataclass(frozen=True)
class GatewaysSummary:
    """Seconds; shares of prompt tokens; coefficients of variation over the replicas."""

    gateways: int
    shared: bool
    requests: int
    failed: int
    cached_ratio: float
    of_ceiling: float
    misjudged_ratio: float
    ttft_mean: float
    ttft_p50: float
    ttft_tail: Tail
    variation_requests: float
    variation_tokens: float
    variation_in_flight: float
    placed_in_p50: float
    unanswered_share: float
    late: Tail
    engines_late: Tail
    gateways_cpu_s: float
    engines_cpu_s: float


def summary(run: GatewaysRun) -> GatewaysSummary:
    served = run.served
    everything = [s for report in run.reports for s in report.served]
    prompt_tokens = sum(s.prompt_tokens for s in served)
    cached_ratio = sum(s.cached_tokens for s in served) / prompt_tokens
    lookups = sum(report.lookups for report in run.reports)
    ttfts = [s.ttft for s in served]
    in_flight = ((s.replica, _overlap(s, run.since, run.until)) for s in everything)
    return GatewaysSummary(
        gateways=run.gateways,
        shared=run.shared,
        requests=len(served),
        failed=sum(report.failed for report in run.reports),
        cached_ratio=cached_ratio,
        of_ceiling=cached_ratio / run.ceiling if run.ceiling else 1.0,
        misjudged_ratio=sum(abs(s.expected_cached_tokens - s.cached_tokens) for s in served)
        / prompt_tokens,
        ttft_mean=statistics.fmean(ttfts),
        ttft_p50=percentile(ttfts, 50),
        ttft_tail=Tail.of(ttfts),
        variation_in_flight=variation(in_flight, run.replicas),
        variation_requests=variation(((s.replica, 1.0) for s in served), run.replicas),
        variation_tokens=variation(
            ((s.replica, float(s.prompt_tokens - s.cached_tokens)) for s in served), run.replicas
        ),
        placed_in_p50=percentile([s.placed_in for s in served], 50),
        unanswered_share=sum(report.unanswered for report in run.reports) / max(1, lookups),
        late=Tail.of([s.late for s in served]),
        engines_late=run.engines_late,
        gateways_cpu_s=sum(report.cpu_s for report in run.reports),
        engines_cpu_s=run.engines_cpu_s,
    )


def ceiling(arrivals: Sequence[Arrival], since: float, block_tokens: int) -> float:
    """The cached share if every request found all that any before it has left."""
    known: set[tuple[Span, ...]] = set()
    found = asked = 0
    for arrival in arrivals:
        tokens = sum(span.tokens for span in arrival.prompt)
        if arrival.due >= since:
            depth = 0
            while depth < len(arrival.prompt) and arrival.prompt[: depth + 1] in known:
                depth += 1
            held = sum(span.tokens for span in arrival.prompt[:depth])
            found += min(held, tokens - 1) // block_tokens * block_tokens
            asked += tokens
        whole = (*arrival.prompt, arrival.answer)
        known.update(whole[:end] for end in range(1, len(whole) + 1))
    return found / asked


def goals(found: Sequence[GatewaysSummary]) -> dict[str, Any]:
    """What the fewest and the most gateways with a shared index tell."""
    shared = sorted((s for s in found if s.shared), key=lambda s: s.gateways)
    few, many = shared[0], shared[-1]
    loss = few.cached_ratio - many.cached_ratio
    return {
        f"cached_ratio_lost_from_{few.gateways}_to_{many.gateways}_gateways": report.goal(
            loss, at_most=RATIO_LOSS_GOAL
        ),
        f"variation_of_load_at_{many.gateways}_gateways": report.goal(
            many.variation_requests, at_most=VARIATION_GOAL
        ),
    }


def figures(found: Iterable[GatewaysSummary]) -> dict[str, Any]:
    return {
        f"{s.gateways}/{index_of(s)}": {
            "requests": s.requests,
            "failed": s.failed,
            "cached_ratio": round(s.cached_ratio, 4),
            "of_ceiling": round(s.of_ceiling, 4),
            "misjudged_ratio": round(s.misjudged_ratio, 4),
            "ttft_ms": {
                "mean": round(1000 * s.ttft_mean, 1),
                "p50": round(1000 * s.ttft_p50, 1),
                s.ttft_tail.name: round(1000 * s.ttft_tail.value, 1),
            },
            "variation": {
                "requests": round(s.variation_requests, 4),
                "tokens": round(s.variation_tokens, 4),
                "in_flight": round(s.variation_in_flight, 4),
            },
            "placed_in_ms_p50": round(1000 * s.placed_in_p50, 2),
            "unanswered_share": round(s.unanswered_share, 5),
            f"late_ms_{s.late.name}": round(1000 * s.late.value, 1),
            f"engines_late_ms_{s.engines_late.name}": round(1000 * s.engines_late.value, 1),
            "cpu_s": {"gateways": round(s.gateways_cpu_s, 1), "engines": round(s.engines_cpu_s, 1)},
        }
        for s in found
    }


def index_of(summary: GatewaysSummary) -> str:
    return "shared" if summary.shared else "own placements only"


def table(found: Iterable[GatewaysSummary]) -> str:
    """Markdown, padded so that it reads in a terminal too."""
    return report.padded([HEADINGS, *(_row(s) for s in found)])


def _row(s: GatewaysSummary) -> tuple[str, ...]:
    return (
        str(s.gateways),
        index_of(s),
        str(s.requests),
        f"{s.cached_ratio:.3f}",
        f"{s.of_ceiling:.3f}",
        f"{1000 * s.ttft_mean:.0f}",
        f"{1000 * s.ttft_tail.value:.0f}",
        f"{s.variation_requests:.3f}",
        f"{s.variation_tokens:.3f}",
        f"{s.variation_in_flight:.3f}",
        f"{1000 * s.placed_in_p50:.2f}",
        f"{s.unanswered_share:.2%}",
        f"{1000 * max(s.late.value, s.engines_late.value):.0f}",
        str(s.failed),
    )


def _overlap(served: ServedRequest, since: float, until: float) -> float:
    """Seconds of the measured time in which the request was at its replica."""
    began = served.due + served.late + served.placed_in
    return max(0.0, min(served.ended, until) - max(began, since))
