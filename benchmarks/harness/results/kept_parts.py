"""The measured parts of an interrupted benchmark, from which it resumes: `--keep FILE`.

The first line of the file names the benchmark, its commit and settings; each other line is a part
with its key. A file of another commit or other settings is rejected. Without a rule in goals.yaml,
the keys have to name the settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.harness.results import report
from benchmarks.harness.results.cores import all_cores
from benchmarks.harness.results.rules import Rule
from common.errors import Problem

Part = TypeVar("Part")
Task = TypeVar("Task", bound=Hashable)


class KeptParts:
    """In `file`, or in memory without one. Raises Problem for a file of another measurement."""

    def __init__(self, file: Path | None, benchmark: str, rule: Rule | None, **of: Any) -> None:
        """`of`: what the parts depend on in addition."""
        self._file = file
        self._parts: dict[str, Any] = {}
        settings = {**rule.settings, "seeds": rule.reported} if rule else {}
        commit = report.STARTED.commit
        told = {"benchmark": benchmark, "commit": commit, "settings": settings, **of}
        self._of = json.loads(json.dumps(msgspec.to_builtins(told)))
        if file is None or not file.exists():
            return
        of_file, *parts = _lines_of(file)
        if of_file != self._of:
            raise Problem(
                f"{file} has parts of another benchmark, commit or settings",
                "give another file to --keep",
            )
        self._parts = {part["key"]: part["found"] for part in parts}

    def get(self, key: str, kind: type[Part]) -> Part | None:
        """None where this part is still to be measured."""
        found = self._parts.get(key)
        return None if found is None else msgspec.convert(found, kind)

    def keep(self, key: str, found: Any) -> None:
        """`found`: anything but None that msgspec can write, such as dataclasses."""
        self._parts[key] = msgspec.to_builtins(found)
        if self._file is None:
            return
        lines = [self._of, *({"key": key, "found": part} for key, part in self._parts.items())]
        beside = self._file.with_name(f"{self._file.name}.new")
        beside.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        beside.replace(self._file)


def all_found(
    tasks: Sequence[Task],
    find: Callable[[Task], Part],
    kind: type[Part],
    kept: KeptParts,
    tell: Callable[[dict[Task, Part], Task], None],
) -> dict[Task, Part]:
    """What `find` returns for each task, of this `kind`, in processes on all cores, in order. Kept
    tasks are not repeated. `tell` is called after each other one, with all that is found so far."""
    found = {task: of for task in tasks if (of := kept.get(repr(task), kind)) is not None}
    left = [task for task in dict.fromkeys(tasks) if task not in found]
    with all_cores() as cores:
        running = {cores.submit(find, task): task for task in left}
        for ended in as_completed(running):
            task = running[ended]
            found[task] = ended.result()
            kept.keep(repr(task), found[task])
            tell(found, task)
    return found


def _lines_of(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text().splitlines()] or [{}]
    except json.JSONDecodeError as error:
        raise Problem(
            f"{file} is not such a file: {error}", "give another file to --keep"
        ) from None
