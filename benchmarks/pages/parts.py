"""Parts that pages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.harness.results import report

Runs = Sequence[Mapping[str, Any]]
Blocks = Iterator[str]
Rows = list[tuple[str, ...]]


def goals(runs: Runs) -> str:
    """A table of the last run's goals: figure (range of the seeds), range of all runs, bound, and
    peer."""
    judged = runs[-1]["goals"]
    several, compared = len(runs) > 1, any(map(peer, judged.values()))
    head = ("Goal", "Measured", *[f"{len(runs)} runs"] * several, "Wanted")
    rows: Rows = [(*head, *["Compared with"] * compared)]
    for name, goal in judged.items():
        wanted = f"{report.wanted(goal, ',g')}: {yes_or_no(goal)}"
        others = (*[span(runs, name)] * several, wanted, *[peer(goal)] * compared)
        rows.append((code(name), spread(goal), *others))
    return report.padded(rows)


def peer(goal: Mapping[str, Any]) -> str:
    """What a goal's figure is compared with, where the goal names it."""
    name = goal.get("peer", goal.get("other"))
    return code(name) if name else ""


def spread(goal: Mapping[str, Any]) -> str:
    """A goal's figure, with its range over several seeds. In full if it would be rounded to its
    bound, so that a reader sees whether the goal is met."""
    bound = next(goal[kind] for kind in ("at_least", "below", "at_most") if kind in goal)
    is_near = number(goal["figure"]) == number(bound)
    figure = f"{goal['figure']:,g}" if is_near else number(goal["figure"])
    seeds = ""
    if goal.get("of", 1) > 1:
        seeds = " ({} to {})".format(*map(number, goal["range"]))
    return f"{figure}{seeds}"


def span(runs: Runs, goal: str) -> str:
    """The range of a goal's figure over the runs, and how many have it where not all do."""
    figures = [run["goals"][goal]["figure"] for run in runs if goal in run["goals"]]
    if len(figures) == 1:
        return "one"
    some = "" if len(figures) == len(runs) else f" in {len(figures)}"
    return f"{number(min(figures))} to {number(max(figures))}{some}"


def number(figure: float) -> str:
    return f"{figure:{',.0f' if abs(figure) >= 1000 else '.4g'}}"


def yes_or_no(goal: Mapping[str, Any]) -> str:
    return "met" if goal["met"] else "**not met**"


def met(runs: Runs) -> str:
    """A sentence: how many goals the last run met."""
    are = [goal["met"] for goal in runs[-1]["goals"].values()]
    return f"{sum(are)} of {len(are)} goals are met."


def estimate(of: Mapping[str, float], form: str) -> str:
    """A figure with its interval."""
    return f"{of['value']:{form}} ({of['low']:{form}} to {of['high']:{form}})"


def code(name: str) -> str:
    return f"`{name}`"
