"""docs/benchmarks/peers.md, from page.md, and the tables that the command prints. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.peers.cases import ANSWER_TOKENS, CASES
from benchmarks.peers.engines import ENGINES, SMALL_CACHE_BLOCKS
from benchmarks.peers.results import Runs, Spread, Unmeasured, ratio
from benchmarks.peers.routers import OURS, ROUTERS
from benchmarks.stand import goal_groups, report
from benchmarks.stand.small_model import LAYERS

USUAL = "|".join(name for name, case in CASES.items() if not case.says)
EXACT = "|".join(name for name, case in CASES.items() if case.says)
JUDGED = {"Mean TTFT": "mean_ttft", "p90 TTFT": "p90_ttft", "Uncached tokens": "uncached"}
GOALS = {
    f"{what}, {cases}": f"({names})_{judged}_by_best_other"
    for cases, names in (("usual cases", USUAL), ("cases that need exact knowledge", EXACT))
    for what, judged in JUDGED.items()
} | {"Failed requests of Antefix": "failed"}


def tables(found: Runs) -> str:
    """What the page shows, in Markdown that reads in a terminal too."""
    ratios = {
        judged: {
            (f"`{case}`", _named(router)): of
            for case, router in found
            if router != OURS and (of := ratio(found, case, router, judged)) is not None
        }
        for judged in ("mean_ttft", "p90_ttft")
    }
    medians = {
        (f"`{case}`", _named(router)): (
            f"{statistics.median(1000 * run.ttft_mean for run in of):.0f},"
            f" {statistics.median(run.cached_ratio for run in of):.3f},"
            f" {statistics.median(run.cpu_ms_a_request for run in of):.1f}"
        )
        for (case, router), of in found.items()
    }
    mean = {at: f"{_marked(of)}{_range(of)}" for at, of in ratios["mean_ttft"].items()}
    tail = {at: _marked(of) for at, of in ratios["p90_ttft"].items()}
    p90 = f"\n\nThe p90 TTFT in the same way:\n\n{report.grid('Case', tail)}" if tail else ""
    return f"""\
Antefix's mean TTFT, divided by the router's with the same seed: median and range. **Above 1,
Antefix is slower.**

{report.grid("Case", mean) if mean else "No router is compared."}{p90}

Medians of the mean TTFT in ms, the share of cached tokens, and the router's CPU in ms a request:

{report.grid("Case", medians)}"""


def _named(router: str) -> str:
    return "Antefix" if router == OURS else ROUTERS[router].says


def _marked(of: Spread) -> str:
    return f"**{of.median:.2f}**" if of.median > 1 else f"{of.median:.2f}"


def _range(of: Spread) -> str:
    return f" ({of.least:.2f}-{of.most:.2f})" if of.least < of.most else ""


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
        answers="\n".join(_answers(goals)),
        kept=kept,
        machines=_machines(found),
        goals=goal_groups.table(goals, GOALS),
        missed=goal_groups.missed(goals, compared=_compared),
        tables=tables(found),
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


def _answers(goals: Mapping[str, Any]) -> Iterator[str]:
    for case in CASES:
        if goal := goals.get(f"{case}_mean_ttft_by_best_other"):
            slower = ": **slower**" if goal["figure"] > 1 else ""
            yield f"- `{case}`: {goal['figure']:.2f} of {ROUTERS[goal['other']].says}{slower}"


def _compared(goal: Mapping[str, Any]) -> str:
    return ROUTERS[goal["other"]].says if "other" in goal else ""


def _machines(found: Runs) -> str:
    # what was installed is a separate sentence, also in runs that are kept
    machines = sorted({run.on.replace("), ", "); ") for of in found.values() for run in of})
    listed = "".join(f"- {on}\n" for on in machines)
    if len(machines) < 2:
        return listed
    return f"{listed}\nThese are not equally fast: compare rows with other seeds by the ratios.\n"
