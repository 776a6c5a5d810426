"""The figures of page.md, from a result that is kept; the same result gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from benchmarks.backtest.results import fewest_misses
from benchmarks.backtest.scenarios import (
    ALL,
    ALL_AT,
    FIXED,
    KUBERNETES,
    KUBERNETES_OURS,
    MOONCAKE,
    OURS,
    POOLS,
    RULE,
    SERVE,
    SERVE_OURS,
    WARM_2,
)
from benchmarks.harness.results import goal_groups, report
from simulator import engine_profile
from simulator.results import FLAP_S, Total

GOALS = {
    "SLO attainment on the ramp": "ramp_attainment(_with_2_warm)?",
    "SLO attainment on the cliff": "cliff_attainment(_with_2_warm)?",
    "SLO attainment in bursts": "bursts_attainment(_with_2_warm)?",
    "SLO attainment, minus Ray Serve's": ".*_attainment_above_serve_default",
    "Replica-hours, divided by another's": ".*replica_hours_of.*",
    "Misses, divided by another's": "misses_of.*",
}


def page(result: Mapping[str, Any]) -> str:
    """The whole document."""
    figures, goals = dict(result["figures"]), result["goals"]
    totals = {policy: Total(**of) for policy, of in figures.pop(ALL).items()}
    rows = [("Policy", "Misses", "Attained", "Replica-hours")]
    rows += [
        (f"`{policy}`", f"{of.misses:,.0f}", f"{of.attainment:.2%}", f"{of.replica_hours:.1f}")
        for policy, of in totals.items()
        if policy in best_of_each(totals)
    ]
    best, best_ours = fewest_misses(totals, KUBERNETES), fewest_misses(totals, KUBERNETES_OURS)
    return report.filled(
        __file__,
        met=goal_groups.met(goals),
        ours=_cost(totals[OURS]),
        warm=_cost(totals[WARM_2]),
        best=best,
        theirs=_cost(totals[best]),
        best_ours=best_ours,
        theirs_ours=_cost(totals[best_ours]),
        serve_ours=_cost(totals[SERVE_OURS]),
        by_hpa=_ratios(goals, "hpa_under_our_routing"),
        by_hpa_warm=_ratios(goals, "hpa_under_our_routing_with_2_warm"),
        by_serve=_ratios(goals, "serve_default_under_our_routing"),
        by_serve_warm=_ratios(goals, "serve_default_under_our_routing_with_2_warm"),
        measured=report.measured(result),
        traces=len(figures),
        requests=totals[OURS].requests,
        totals=report.padded(rows),
        by_trace=_by_trace(figures, best, best_ours),
        changes=", ".join(_changes(figures, policy) for policy in (OURS, SERVE, best)),
        seeds=", ".join(map(str, result["seeds"])),
        tuning=", ".join(map(str, RULE.tuning)),
        goals=goal_groups.table(goals, GOALS, ".4f", only_met=True),
        missed=goal_groups.missed(goals, compared=_compared),
        ramp=POOLS["ramp"],
        noise=POOLS["noise"],
        mooncake=POOLS[MOONCAKE],
        FLAP_S=FLAP_S,
        **_engine(),
    )


def best_of_each(totals: Mapping[str, Total]) -> set[str]:
    """Of policies that differ only in their target, the one with the fewest misses."""
    best: dict[str, str] = {}
    for policy, of in totals.items():
        kind = re.sub(r":[\d.]+", "", policy)
        if kind not in best or of.misses < totals[best[kind]].misses:
            best[kind] = policy
    return {*best.values(), SERVE}


def _cost(of: Total) -> str:
    return f"{of.misses:,.0f} requests in {of.replica_hours:.1f} replica-hours"


def _ratios(goals: Mapping[str, Any], peer: str) -> str:
    misses, hours = goals[f"misses_of_{peer}"], goals[f"replica_hours_of_{peer}"]
    return (
        f"{report.change(misses['figure'])}, and its replica-hours are"
        f" {report.change(hours['figure'])}"
    )


def _by_trace(figures: Mapping[str, Any], best: str, best_ours: str) -> str:
    cells = {}
    for policy in (OURS, WARM_2, SERVE, SERVE_OURS, best, best_ours, ALL_AT, FIXED):
        for trace, of in figures.items():
            s = of[f"{FIXED}:{POOLS[trace].max_replicas}" if policy == FIXED else policy]
            cells[f"`{policy}`", trace] = f"{s['attainment']:.2%}, {s['replica_hours']:.2f}"
    return report.grid("Policy", cells)


def _changes(figures: Mapping[str, Any], policy: str) -> str:
    changes, flaps = (
        [of[policy][name] for of in figures.values()] for name in ("changes", "flaps")
    )
    return f"`{policy}` {max(changes):.0f} and {max(flaps):.0f}"


def _compared(goal: Mapping[str, Any]) -> str:
    return f"`{goal['peer']}`" if "peer" in goal else ""


def _engine() -> dict[str, Any]:
    engine = engine_profile.read(engine_profile.SHIPPED)
    hardware = engine.hardware
    return {
        "engine": engine,
        "hardware": hardware,
        "step_ms": 1000 * hardware.step_s,
        "sequence_ms": 1000 * hardware.sequence_s,
        "cache_tokens": hardware.block_tokens * hardware.blocks,
        "profile": engine_profile.SHIPPED.name,
    }
