"""Where the time of one `make test` goes.

python -m tests.slowest FILE    each part's wall clock and its slowest tests, in a few lines

Each part of `make test` appends tab-separated lines to the file: part, seconds, what. That is
WALL, SUM, or a test with its fixtures.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

WALL, SUM = "wall clock", "all tests together"
KEPT, SHOWN = 25, 8


def append(file: Path, part: str, wall_s: float, stats: Mapping[str, Sequence[Any]]) -> None:
    """`part` is its `-m`; `stats` are the terminal reporter's."""
    seconds: Counter[str] = Counter()
    for report in (report for reports in stats.values() for report in reports):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration  # type: ignore[assignment]
    lines = [(WALL, wall_s), (SUM, sum(seconds.values())), *seconds.most_common(KEPT)]
    with file.open("a") as out:
        out.writelines(f"{part}\t{took:.1f}\t{what}\n" for what, took in lines)


def shown(file: Path) -> str:
    """A line for each part, and one for each of its slowest tests."""
    lines, tests = ["Where the time went:"], 0
    for line in file.read_text().splitlines():
        part, seconds, what = line.split("\t")
        if what == WALL:
            lines.append(f"{part}: {float(seconds):.0f} s")
            tests = 0
        elif what == SUM:
            lines[-1] += f", {float(seconds):.0f} s of tests"
        elif (tests := tests + 1) <= SHOWN:
            lines.append(f"  {float(seconds):6.1f} s  {what}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(shown(Path(sys.argv[1])))
