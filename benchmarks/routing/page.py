"""The figures of page.md, from a result that is kept; the same result gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.fleets.small_model import LAYERS
from benchmarks.harness.results import goal_groups, report

OURS = "prefix"
GOALS = {
    "Mean or tail TTFT, divided by the best other's": "multi_turn_.*_ttft_of_best_other",
    "Load of the busiest replica, divided by the mean": "hot_prefix_most_.*_over_mean",
    "`least_loaded` TTFT, divided by `prefix`": ".*_ttft_least_loaded_over_prefix",
    "`prefix` throughput, divided by `least_loaded`": ".*_throughput_prefix_over_least_loaded",
}


def page(result: Mapping[str, Any]) -> str:
    """The whole document."""
    goals, figures = result["goals"], result["figures"]
    times, cached = {}, {}
    spread: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, of in figures.items():
        workload, policy = (f"`{part}`" for part in name.split("/"))
        (_, mean), _, (tail, seconds) = of["ttft_ms"].items()
        times[policy, f"{workload}, mean and {tail}"] = f"{mean:.1f}, {seconds:.1f}"
        loads = of["requests_max_over_mean"], of["tokens_max_over_mean"]
        who = policy if policy == f"`{OURS}`" else "others"
        spread.setdefault((who, workload), []).append(loads)
        if most := of["oracle_ratio"]:
            cached[policy, workload] = f"{of['cached_ratio'] / most:.3f}"
    requests = [of["requests"] for of in figures.values()]
    return report.filled(
        __file__,
        met=goal_groups.met(goals),
        ratios="\n".join(_ratios(figures)),
        measured=report.measured(result),
        times=report.grid("Policy", times),
        cached=report.grid("Policy", cached),
        spread=report.grid("Policy", {at: _spans(loads) for at, loads in spread.items()}),
        least=min(requests),
        most=max(requests),
        failed=sum(of["failures"] for of in figures.values()),
        lookups=sum(of["lookups_failed"] for of in figures.values()),
        goals=goal_groups.table(goals, GOALS, only_met=True),
        errors=", ".join(_errors(goals)) or "none",
        LAYERS=LAYERS,
    )


def _spans(loads: Sequence[tuple[float, float]]) -> str:
    """The range of each kind of load."""
    ends = ((f"{min(of):.2f}", f"{max(of):.2f}") for of in zip(*loads, strict=True))
    return ", ".join(least if least == most else f"{least} to {most}" for least, most in ends)


def _ratios(figures: Mapping[str, Any]) -> Iterator[str]:
    means: dict[str, dict[str, float]] = {}
    for name, of in figures.items():
        workload, _, policy = name.partition("/")
        means.setdefault(workload, {})[policy] = of["ttft_ms"]["mean"]
    for workload, mean in means.items():
        ours = mean.pop(OURS)
        best = min(mean, key=mean.__getitem__)
        yield f"- `{workload}`: **{report.change(ours / mean[best])}** than `{best}`"


def _errors(goals: Mapping[str, Any]) -> Iterator[str]:
    for name, goal in goals.items():
        if "standard_error" in goal:
            yield f"{goal['standard_error']:.3f} ({name.replace('_', ' ')})"
