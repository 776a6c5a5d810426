"""docs/benchmarks/drills.md; the same figures give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.drills.scenarios import OF_THREE

HEAD = ("Drill", "Requests", "Hit", "Went on", "Told", "Longest gap, s", "Whole after, s", "Right")


def page(runs: Sequence[Mapping[str, Mapping[str, Any]]], command: str, machine: str) -> str:
    """The whole document. `runs`: of each, `Judgement.figures` by drill. `machine` is what
    `report.machine_in_words` says."""
    return f"""\
# What came of each drill

`{command}`:
{machine}

What is done in each, and what is expected, is told in [drills](../drills.md). *Hit* are requests
that were at what was hit, or under way when a gateway was; *told* is what those of them were
answered that did not go on. Requests are those of all {len(runs)} runs together, gaps and times the
longest, *right* the runs that were as they should be.

{_table([HEAD, ["--"] * len(HEAD), *(_row(name, runs) for name in runs[0])])}
{_updates([run[OF_THREE] for run in runs if "took_s" in run.get(OF_THREE, {})])}"""


def _updates(updates: Sequence[Mapping[str, Any]]) -> str:
    if not updates:
        return ""
    fewest = min(of["fewest_serving"] for of in updates)
    took = ", ".join(f"{of['took_s']:.0f} ({of['one_start_s']:.0f})" for of in updates)
    return f"""
While `{OF_THREE}` replaced three engines at least {fewest} of them served. It took so many seconds,
and what an engine itself does of its start so many on average: {took}.
"""


def _row(name: str, runs: Sequence[Mapping[str, Mapping[str, Any]]]) -> Sequence[str]:
    every = [run[name] for run in runs]
    seen = [figures for figures in every if "skipped" not in figures]
    if not seen:
        return (f"`{name}`", *["" for _ in HEAD[2:]], f"skipped: {every[0]['skipped']}")
    told = Counter[str]()
    for figures in seen:
        told.update(figures["told"])
    wrong = sorted({what for figures in seen for what in figures["wrong"]})
    right = f"{sum(not figures['wrong'] for figures in seen)} of {len(every)}"
    return (
        f"`{name}`",
        *(str(sum(figures[what] for figures in seen)) for what in ("requests", "hit", "went_on")),
        ", ".join(f"{count} `{code}`" for code, count in sorted(told.items())),
        *(f"{max(of[what] for of in seen):.1f}" for what in ("longest_gap_s", "whole_after_s")),
        f"{right}: {'; '.join(wrong)}" if wrong else right,
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
