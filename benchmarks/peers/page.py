"""docs/benchmarks/peers.md, from page.md. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.harness.fleets.small_model import LAYERS
from benchmarks.harness.results import goal_groups, report
from benchmarks.peers.cases import ANSWER_TOKENS, CASES
from benchmarks.peers.engines import ENGINES, SMALL_CACHE_BLOCKS
from benchmarks.peers.results import PeerRun, Runs, Unmeasured, ratios
from benchmarks.peers.routers import OURS, ROUTERS

USUAL = "|".join(name for name, case in CASES.items() if not case.says)
EXACT = "|".join(name for name, case in CASES.items() if case.says)
JUDGED = {"Mean TTFT": "mean_ttft", "p90 TTFT": "p90_ttft", "Uncached tokens": "uncached"}
GOALS = {
    f"{what}, {cases}": f"({names})_{judged}_by_best_other"
    for cases, names in (("usual cases", USUAL), ("cases that need exact knowledge", EXACT))
    for what, judged in JUDGED.items()
} | {"Failed requests of Antefix": "failed"}


def mean_ratios(found: Runs) -> str:
    """A table, for a terminal too."""
    mean = {
        (f"`{case}`", _named(router)): _median_and_range(of)
        for case, router in found
        if router != OURS and (of := ratios(found, case, router, "mean_ttft"))
    }
    return f"""\
Antefix's mean TTFT, divided by the router's with the same seed: median and range. **Above 1,
Antefix is slower.**

{report.grid("Case", mean) if mean else "No router is compared."}"""


def _medians(of: Sequence[PeerRun]) -> str:
    return (
        f"{statistics.median(1000 * run.ttft_mean for run in of):.0f},"
        f" {statistics.median(run.cached_ratio for run in of):.3f},"
        f" {statistics.median(run.cpu_ms_a_request for run in of):.1f}"
    )


def _named(router: str) -> str:
    return "Antefix" if router == OURS else ROUTERS[router].says


def _median_and_range(ratios: Sequence[float]) -> str:
    median, least, most = statistics.median(ratios), min(ratios), max(ratios)
    marked = f"**{median:.2f}**" if median > 1 else f"{median:.2f}"
    return f"{marked} ({least:.2f}-{most:.2f})" if least < most else marked


def page(found: Runs, unmeasured: Sequence[Unmeasured], goals: Mapping[str, Any], kept: str) -> str:
    """The whole document. `kept`: the file next to it that has each run."""
    routers = dict.fromkeys(router for _, router in found)
    releases = dict.fromkeys(filter(None, (ROUTERS[name].release for name in routers)))
    failed = {
        f"{_named(router)} in {case}": sum(run.failed for run in of)
        for (case, router), of in found.items()
    }
    seeds = sorted({len(of) for of in found.values()})
    return report.filled(
        __file__,
        releases=", ".join(f"`{one}`" for one in releases),
        met=goal_groups.met(goals),
        answers=_answers(found, goals),
        kept=kept,
        machines=_machines(found),
        goals=goal_groups.table(goals, GOALS),
        ratios=mean_ratios(found),
        cpu=_cpu(found),
        seeds=" to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))),
        failed=", ".join(f"{of} behind {name}" for name, of in failed.items() if of) or "none",
        unmeasured="".join(
            f"\n\nNot measured: {one.case} behind {one.router}, seed {one.seed}: `{one.why}`"
            for one in unmeasured
        ),
        differences="\n".join(f"- `{name}`: {of.says}." for name, of in CASES.items() if of.says),
        ANSWER_TOKENS=ANSWER_TOKENS,
        ENGINES=ENGINES,
        LAYERS=LAYERS,
        SMALL_CACHE_BLOCKS=SMALL_CACHE_BLOCKS,
    )


def _answers(found: Runs, goals: Mapping[str, Any]) -> str:
    """A row for each case: the goals about it, and the figures of the two routers."""
    rows = [("Case", "Best other", *JUDGED, "Antefix", "Best other's")]
    for case in CASES:
        if mean := goals.get(f"{case}_mean_ttft_by_best_other"):
            judged = (goals.get(f"{case}_{of}_by_best_other") for of in JUDGED.values())
            other = mean["other"]
            figures = (_medians(found[case, router]) for router in (OURS, other))
            rows.append(
                (f"`{case}`", ROUTERS[other].says, *map(_judged_cell, judged), *figures),
            )
    return report.padded(rows)


def _judged_cell(goal: Mapping[str, Any] | None) -> str:
    if goal is None:
        return ""
    return f"{goal['figure']:.2f}" if goal["met"] else f"**{goal['figure']:.4f}**"


def _cpu(found: Runs) -> str:
    """The range over the cases, of each router."""
    by_router: dict[str, list[float]] = {}
    for (_, router), of in found.items():
        median = statistics.median(run.cpu_ms_a_request for run in of)
        by_router.setdefault(_named(router), []).append(median)
    return "; ".join(
        f"{router}, {min(of):.1f} to {max(of):.1f}" for router, of in by_router.items()
    )


def _machines(found: Runs) -> str:
    # what was installed is a separate sentence, also in runs that are kept
    machines = sorted({run.on.replace("), ", "); ") for of in found.values() for run in of})
    listed = "".join(f"- {on}\n" for on in machines)
    if len(machines) < 2:
        return listed
    return f"{listed}\nThese are not equally fast: compare rows with other seeds by the ratios.\n"
