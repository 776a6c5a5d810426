"""Goals on a page: a row for each group of them, and each missed goal in full. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.harness.results import report

Goal = Mapping[str, Any]
Goals = Mapping[str, Goal]
"""By name; see `report.goal` and `rules.judged`."""
Groups = Mapping[str, str]
"""What a group is about -> a regular expression of the whole names of its goals. The first that
matches decides."""


def met(goals: Goals) -> str:
    """Such as `52 of 61`."""
    return f"{sum(goal['met'] for goal in goals.values())} of {len(goals)}"


def table(goals: Goals, groups: Groups, figure: str = ".3f", only_met: bool = False) -> str:
    """A row for each group and bound, with its worst figure. A goal without a group has its own
    row. `figure`: how these are formatted. `only_met`: omit groups with a missed goal."""
    found: dict[tuple[str, str], dict[str, Goal]] = {}
    for name, goal in goals.items():
        about = next(
            (about for about, of in groups.items() if re.fullmatch(of, name)), _words(name)
        )
        found.setdefault((about, report.wanted(goal)), {})[name] = goal
    rows = [("Goals", "Wanted", "Worst", "Met")]
    for (about, wanted), of in found.items():
        if only_met and not all(goal["met"] for goal in of.values()):
            continue
        figures = [goal["figure"] for goal in of.values()]
        worst = min(figures) if wanted.startswith("at least") else max(figures)
        rows.append((about, wanted, f"{worst:{figure}}", met(of)))
    return report.padded(rows)


def missed(
    goals: Goals, figure: str = ".4f", compared: Callable[[Goal], str] = lambda goal: ""
) -> str:
    """Each missed goal, with its range over the seeds and what it is `compared` with, where there
    are such."""
    of = {name: goal for name, goal in goals.items() if not goal["met"]}
    if not of:
        return "No goal is missed."
    rows = [["Missed goal", "Figure", "Wanted"]]
    rows += [
        [_words(name), f"{goal['figure']:{figure}}", report.wanted(goal)]
        for name, goal in of.items()
    ]
    more = {
        "Range": [_range(goal, figure) for goal in of.values()],
        "Compared with": [compared(goal) for goal in of.values()],
    }
    for heading, cells in more.items():
        if any(cells):
            for row, cell in zip(rows, [heading, *cells], strict=True):
                row.append(cell)
    return report.padded(rows)


def _range(goal: Goal, figure: str) -> str:
    if "range" not in goal:
        return ""
    least, most = (f"{bound:{figure}}" for bound in goal["range"])
    return f"{least} to {most}"


def _words(name: str) -> str:
    return name.replace("_", " ")
