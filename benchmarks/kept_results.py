"""The results of all runs that are kept: docs/benchmarks/results/NAME.jsonl, a line of JSON each.

Lines are only appended, so a run that missed its goals stays before a later one that met them. A
result is what `benchmarks.harness.results.report.finish` prints. `commit` is the one that was
measured; in lines from before results had one it is that which recorded the result, and
`commit_from` says so. `from_page` names figures that a line lacked at first and that the page of
the same run had.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.results import report

FOLDER = report.PAGES / "results"

Result = Mapping[str, Any]
History = Mapping[str, Sequence[Result]]
"""All kept runs of each benchmark, at least one, the last one last."""

# Parts of names in older results, and what replaced them.
RENAMED = {"+ours": "+antefix-routing", "_under_our_routing": "_with_antefix_routing"}


def read(folder: Path = FOLDER) -> dict[str, list[Result]]:
    return {
        file.stem: [json.loads(_renamed(line)) for line in file.read_text().splitlines()]
        for file in sorted(folder.glob("*.jsonl"))
    }


def _renamed(line: str) -> str:
    for before, now in RENAMED.items():
        line = line.replace(before, now)
    return line


def append(result: Result, folder: Path = FOLDER) -> None:
    """Append the result, unless the history has exactly this one already."""
    line = json.dumps(result)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result['benchmark']}.jsonl"
    if file.exists() and line in file.read_text().splitlines():
        return
    with file.open("a") as lines:
        lines.write(f"{line}\n")


def last(history: History) -> dict[str, Result]:
    """The last run of each benchmark."""
    return {name: runs[-1] for name, runs in history.items()}
