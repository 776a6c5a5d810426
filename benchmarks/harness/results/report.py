"""How every benchmark ends: where it ran, its goals, and one line of JSON."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.results import revision
from common.machine import machine

# Before the run: a later commit is not measured.
STARTED = revision.here()
BEGAN = time.monotonic()
# Where pages are written.
PAGES = revision.ROOT / "docs" / "benchmarks"


def machine_in_words() -> str:
    """Where and when this process measures, for a page."""
    return in_words({**machine(), "commit": STARTED.commit, "dirty": STARTED.dirty})


def in_words(of: Mapping[str, Any]) -> str:
    """Where and when a result was measured, and of which commit. Older results have less."""
    versions = ", ".join(f"{name} {version}" for name, version in of["versions"].items())
    autogroups = ", with autogroups" if of.get("autogroups") else ""
    build = ""
    if "python_build" in of:
        has = " and ".join(name.upper() for name, has in of["python_build"].items() if has)
        build = f" (built {f'with {has}' if has else 'without PGO and LTO'})"
    return (
        f"{of['date']}, on {of['cores']} cores of {of['cpu']}{autogroups};"
        f" Python {of['python']}{build}; {versions}.{_commit(of)}"
    )


def in_short(of: Mapping[str, Any]) -> str:
    """When, where and of which commit a result is; its line in results/ has the versions."""
    return f"{of['date']}, on {of['cores']} cores of {of['cpu']}.{_commit(of)}"


def _commit(of: Mapping[str, Any]) -> str:
    if not of.get("commit"):
        return ""
    recorded = "Recorded by commit" if "commit_from" in of else "Commit"
    return f" {recorded} {of['commit'][:7]}{', with changes' if of['dirty'] else ''}."


def padded(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, padded for terminals; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " -- |" * len(widths), *lines[1:]])


def grid(head: str, cells: Mapping[tuple[str, str], str]) -> str:
    """A table of cells by row and column, both in the order in which they come."""
    columns = list(dict.fromkeys(column for _, column in cells))
    rows = [
        (row, *(cells.get((row, column), "") for column in columns))
        for row in dict.fromkeys(row for row, _ in cells)
    ]
    return padded([(head, *columns), *rows])


def filled(module: str, /, **values: Any) -> str:
    """The Markdown file next to a module, with `values` in place of what is in braces."""
    return Path(module).with_suffix(".md").read_text().format_map(values)


def goal(figure: float, *, at_most: float | None = None, at_least: float | None = None) -> Any:
    """A figure with its goal, and whether it is met."""
    if at_most is not None:
        return {"figure": round(figure, 4), "at_most": at_most, "met": figure <= at_most}
    assert at_least is not None
    return {"figure": round(figure, 4), "at_least": at_least, "met": figure >= at_least}


def change(ratio: float) -> str:
    """Return a ratio as a change in percent, such as "23% lower" or "less than 1% lower"."""
    percent = round(100 * ratio) - 100
    size = f"{abs(percent)}%" if percent or ratio == 1 else "less than 1%"
    return f"{size} {'lower' if ratio < 1 else 'higher'}"


def with_changes(goals: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return goals whose figures are also there as a `change`, for goals about ratios."""
    return {name: {**goal, "change": change(goal["figure"])} for name, goal in goals.items()}


def wanted(goal: Mapping[str, Any], form: str = "g") -> str:
    """A goal's bound in words. `form`: how the number is formatted."""
    (kind, *_) = (kind for kind in ("at_least", "below", "at_most") if kind in goal)
    return f"{kind.replace('_', ' ')} {goal[kind]:{form}}"


# Measurements whose command is not `make bench-NAME`.
OF_OTHER_NAMES = frozenset({"drills", "drill-hangs", "soak"})


# An option with a file of the machine's, which changes nothing that is measured.
FILE_OPTION = "--keep"


def command(benchmark: str, given: Sequence[str] | None = None) -> str:
    """The command that repeats this run, without FILE_OPTION. `given`: its arguments, by default
    those of this process."""
    name = benchmark if benchmark in OF_OTHER_NAMES else f"bench-{benchmark}"
    files = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    files.add_argument(FILE_OPTION)
    _, others = files.parse_known_args(given)
    return f"make {name}" + (f' ARGS="{shlex.join(others)}"' if others else "")


def result(
    benchmark: str, figures: Mapping[str, Any], goals: Mapping[str, Any], *, seeds: Sequence[int]
) -> dict[str, Any]:
    """All that is kept of a run, and what pages are written from. `minutes` since it began.

    `seeds`: of all random choices; none where these differ each time."""
    return {
        "benchmark": benchmark,
        "command": command(benchmark),
        "commit": STARTED.commit,
        "dirty": STARTED.dirty,
        "seeds": [*seeds],
        "minutes": round((time.monotonic() - BEGAN) / 60, 1),
        "figures": figures,
        "goals": goals,
        **machine(),
    }


def finish(
    benchmark: str, figures: Mapping[str, Any], goals: Mapping[str, Any], *, seeds: Sequence[int]
) -> None:
    """The last line a benchmark prints. It exits 0 whether its goals are met or not."""
    print(json.dumps(result(benchmark, figures, goals, seeds=seeds)))
