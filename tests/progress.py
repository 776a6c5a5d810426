"""How far the tests are, and how long the rest takes.

A pytest session appends lines of JSON to the file that `ANTEFIX_TEST_PROGRESS` names: one with the
tests that it found, and one with the seconds of each test that ended. `tests.run` reads these files
while the sessions run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NOTED_IN = "ANTEFIX_TEST_PROGRESS"
# A rate that is measured over less than this share of a part says little.
RATED_SHARE = 0.05


class Noting:
    """The pytest plugin that writes the file; of several workers, only their controller has it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seconds: Counter[str] = Counter()
        self._failed: set[str] = set()
        self._found = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._note_found([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._note_found(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration  # type: ignore[assignment]
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            seconds = round(self._seconds[report.nodeid], 3)
            self._note(test=report.nodeid, s=seconds, failed=report.nodeid in self._failed)

    def _note_found(self, ids: list[str]) -> None:
        if not self._found:  # each worker finds all of them
            self._found = True
            self._note(found=ids)

    def _note(self, **told: Any) -> None:
        with self._file.open("a") as lines:
            lines.write(json.dumps(told) + "\n")


def note_if_asked(config: pytest.Config) -> None:
    file = os.environ.get(NOTED_IN)
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Noting(Path(file)))


@dataclass(frozen=True)
class Noted:
    """What the sessions of a part have noted so far; `ended` has each test's seconds."""

    found: frozenset[str] = frozenset()
    ended: Mapping[str, float] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()

    def share(self, recorded: Mapping[str, float]) -> float:
        """Return the share of the part's work that is done, from 0 to 1. A test counts with the
        seconds that it took in an earlier run; one without them counts as the mean of the
        others."""
        tests = self.found | self.ended.keys()
        known = [recorded[test] for test in tests if test in recorded]
        mean = (sum(known) / len(known) if known else 0) or 1
        total = sum(recorded.get(test, mean) for test in tests)
        return sum(recorded.get(test, mean) for test in self.ended) / total if total else 0


def read(file: Path) -> Noted:
    found: set[str] = set()
    ended: dict[str, float] = {}
    failed: set[str] = set()
    for line in file.read_text().splitlines(keepends=True) if file.exists() else ():
        if not line.endswith("\n"):  # is being written
            continue
        told = json.loads(line)
        found.update(told.get("found", ()))
        if "test" in told:
            ended[told["test"]] = told["s"]
            if told["failed"]:
                failed.add(told["test"])
    return Noted(frozenset(found), ended, frozenset(failed))


@dataclass(frozen=True)
class State:
    """A part: what it usually takes, how long it has run, how long it has run tests, and the share
    of its tests' work that is done. Times are in seconds."""

    usual_s: float
    after: tuple[str, ...] = ()
    started: bool = False
    ended: bool = False
    elapsed_s: float = 0
    testing_s: float = 0
    share: float = 0

    @property
    def left_s(self) -> float:
        """Return the seconds that the part itself still takes, from its rate once it has one."""
        if self.ended:
            return 0
        if self.share >= RATED_SHARE:
            return self.testing_s * (1 - self.share) / self.share
        return max(0.0, self.usual_s - self.elapsed_s)


def remaining_s(parts: Mapping[str, State]) -> float:
    """Return the seconds until the last part ends. In `parts`, each follows those that it waits
    for."""
    until: dict[str, float] = {}
    for name, part in parts.items():
        waits = 0 if part.started else max((until[other] for other in part.after), default=0)
        until[name] = waits + part.left_s
    return max(until.values(), default=0)


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def line(
    elapsed_s: float,
    done: Mapping[str, str],
    tests: tuple[int, int],
    left_s: float,
    is_whole: bool = True,
) -> str:
    """`tests` are those that ended and those that were found; `is_whole`: every part has found its
    tests. `done` says how each running part stands."""
    ended, found = tests
    parts = ", ".join(f"{name} {how}" for name, how in done.items())
    least = "" if is_whole else "at least "
    return (
        f"{clock(elapsed_s)} elapsed, about {clock(left_s)} left: "
        f"{ended:,} of {least}{found:,} tests done ({parts})"
    )
