"""The answers of all runs as figures and goals. Pure.

A run is one workload under one policy with one seed. Seeds are pooled, except for the spread of
load, where the worst run counts. Two policies are compared on the same requests. How far chance
could move their ratio is its standard error over batches of consecutive arrivals, since requests
in one queue are not independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.load.routed_runs import RoutingRun
from benchmarks.harness.results import report
from common.percentiles import Tail, percentile

ORACLE_SHARE_GOAL = 0.97
LOWEST_GOAL = 1.0
SPREAD_GOAL = 1.25
LEAST_LOADED_GOAL = 0.98
BATCH = 8


@dataclass(frozen=True)
class RoutingSummary:
    """A workload under a policy, over all seeds. Times in seconds, ratios of prompt tokens."""

    requests: int
    failures: int
    ttft_mean: float
    ttft_p50: float
    ttft_tail: Tail
    cached_ratio: float
    oracle_ratio: float
    requests_spread: float
    tokens_spread: float
    throughput: float
    misjudged_ratio: float
    """Cached tokens expected and not found, or found and not expected."""
    lookups_failed: int

    @property
    def oracle_share(self) -> float:
        return self.cached_ratio / self.oracle_ratio if self.oracle_ratio else 1.0


@dataclass(frozen=True)
class Ratio:
    value: float
    standard_error: float


Summaries = dict[tuple[str, str], RoutingSummary]
"""By workload and policy."""


def summaries(runs: Sequence[RoutingRun]) -> Summaries:
    grouped: dict[tuple[str, str], list[RoutingRun]] = defaultdict(list)
    for run in runs:
        grouped[run.workload, run.policy].append(run)
    return {key: _summary(group) for key, group in grouped.items()}


def _summary(runs: Sequence[RoutingRun]) -> RoutingSummary:
    answers = [answer for run in runs for answer in run.answers]
    ttfts = sorted(answer.ttft for answer in answers)
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    misjudged = sum(abs(a.expected_cached_tokens - a.cached_tokens) for a in answers)
    return RoutingSummary(
        requests=len(answers),
        failures=sum(len(run.failures) for run in runs),
        ttft_mean=sum(ttfts) / len(ttfts),
        ttft_p50=percentile(ttfts, 50),
        ttft_tail=Tail.of(ttfts),
        cached_ratio=sum(answer.cached_tokens for answer in answers) / prompt_tokens,
        oracle_ratio=sum(sum(run.most_cached) for run in runs) / prompt_tokens,
        requests_spread=max(run.requests_spread for run in runs),
        tokens_spread=max(run.tokens_spread for run in runs),
        throughput=sum(run.throughput for run in runs) / len(runs),
        misjudged_ratio=misjudged / prompt_tokens,
        lookups_failed=sum(run.lookups_failed for run in runs),
    )


def ttft_ratio(runs: Sequence[RoutingRun], workload: str, over: str, under: str) -> Ratio:
    """Mean TTFT of `over`, divided by that of `under`, on the requests that both answered."""
    above, below = _ttfts(runs, workload, over), _ttfts(runs, workload, under)
    paired = sorted(above.keys() & below.keys())
    batches: dict[tuple[int, int], list[_Request]] = defaultdict(list)
    for number, request in enumerate(paired):
        batches[request[0], number // BATCH].append(request)
    sums = [
        (sum(above[request] for request in batch), sum(below[request] for request in batch))
        for batch in batches.values()
    ]
    return _ratio_of_sums(sums)


_Request = tuple[int, str, int]
"""Seed, conversation, turn: sorts by arrival."""


def _ttfts(runs: Sequence[RoutingRun], workload: str, policy: str) -> dict[_Request, float]:
    return {
        (run.seed, answer.conversation, answer.turn): answer.ttft
        for run in runs
        if (run.workload, run.policy) == (workload, policy)
        for answer in run.answers
    }


def _ratio_of_sums(sums: Sequence[tuple[float, float]]) -> Ratio:
    """Source of the error: the ratio estimator of sampling theory (linearised residuals)."""
    above, below = sum(a for a, _ in sums), sum(b for _, b in sums)
    if not below:
        return Ratio(math.nan, math.nan)
    ratio, count = above / below, len(sums)
    if count < 2:
        return Ratio(ratio, math.nan)
    residuals = sum((a - ratio * b) ** 2 for a, b in sums)
    return Ratio(ratio, math.sqrt(residuals * count / (count - 1)) / below)


def goals(runs: Sequence[RoutingRun]) -> dict[str, Any]:
    """Each goal that these runs can decide, with its figure and whether it was met."""
    found = summaries(runs)
    judged: dict[str, Any] = {}
    if multi := found.get(("multi_turn", "prefix")):
        judged["multi_turn_cached_of_oracle"] = report.goal(
            multi.oracle_share, at_least=ORACLE_SHARE_GOAL
        )
        others = [s for (w, p), s in found.items() if w == "multi_turn" and p != "prefix"]
        if others:
            judged["multi_turn_mean_ttft_of_best_other"] = report.goal(
                multi.ttft_mean / min(s.ttft_mean for s in others), at_most=LOWEST_GOAL
            )
            tail = multi.ttft_tail
            judged[f"multi_turn_{tail.name}_ttft_of_best_other"] = report.goal(
                tail.value / min(s.ttft_tail.value for s in others), at_most=LOWEST_GOAL
            )
    if hot := found.get(("hot_prefix", "prefix")):
        for load, spread in (("requests", hot.requests_spread), ("tokens", hot.tokens_spread)):
            judged[f"hot_prefix_most_{load}_over_mean"] = report.goal(spread, at_most=SPREAD_GOAL)
    for workload in ("short", "no_reuse"):
        ours, theirs = found.get((workload, "prefix")), found.get((workload, "least_loaded"))
        if ours and theirs:
            ratio = ttft_ratio(runs, workload, over="least_loaded", under="prefix")
            judged[f"{workload}_ttft_least_loaded_over_prefix"] = {
                **report.goal(ratio.value, at_least=LEAST_LOADED_GOAL),
                "standard_error": round(ratio.standard_error, 4),
            }
            judged[f"{workload}_throughput_prefix_over_least_loaded"] = report.goal(
                ours.throughput / theirs.throughput, at_least=LEAST_LOADED_GOAL
            )
    return judged


def figures(found: Summaries) -> dict[str, Any]:
    """For the line of JSON, which the page is written from."""
    return {
        f"{workload}/{policy}": {
            "requests": summary.requests,
            "failures": summary.failures,
            "ttft_ms": {
                "mean": round(1000 * summary.ttft_mean, 1),
                "p50": round(1000 * summary.ttft_p50, 1),
                summary.ttft_tail.name: round(1000 * summary.ttft_tail.value, 1),
            },
            "cached_ratio": round(summary.cached_ratio, 4),
            "oracle_ratio": round(summary.oracle_ratio, 4),
            "requests_max_over_mean": round(summary.requests_spread, 3),
            "tokens_max_over_mean": round(summary.tokens_spread, 3),
            "requests_per_s": round(summary.throughput, 2),
            "misjudged_ratio": round(summary.misjudged_ratio, 4),
            "lookups_failed": summary.lookups_failed,
        }
        for (workload, policy), summary in found.items()
    }
