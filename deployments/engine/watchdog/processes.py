"""Linux's facts about a process and its children: running, waiting or stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
# States in which a thread neither runs nor wants to, nor waits for a disk; a zombie never will.
_AT_REST = frozenset("SITZX")
# Timers and pollers always use a little time.
_LITTLE = 0.1


class Thread(NamedTuple):
    """`used_s`: seconds on a core, and the seconds of waiting for one until it last got it."""

    state: str
    used_s: float


Threads = Mapping[tuple[int, int], Thread]


def with_children(pid: int) -> list[int]:
    """Return the process and its descendants, parents first. Raises OSError if the kernel does not
    report them."""
    found = [pid]
    for parent in found:
        for thread in _threads_of(parent):
            try:
                found.extend(map(int, (thread / "children").read_text().split()))
            except (FileNotFoundError, ProcessLookupError):
                if thread.exists():  # a kernel without CONFIG_PROC_CHILDREN
                    raise
    return found


def state(pid: int) -> str:
    """Return the letter of `man 5 proc`; "X" for a process that is gone."""
    try:
        return _state((PROC / str(pid) / "stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def maps(pid: int, path: Path) -> bool:
    """Return whether the process lives and has mapped the file."""
    try:
        return f" {path}\n" in (PROC / str(pid) / "maps").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def threads(pids: list[int]) -> Threads:
    """Return threads by process. Raises OSError if the kernel does not report them."""
    found = {}
    for pid in pids:
        for thread in _threads_of(pid):
            try:
                used = (thread / "schedstat").read_text().split()
                name = _state((thread / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                if thread.exists():  # a kernel without CONFIG_SCHED_INFO
                    raise
                continue
            found[pid, int(thread.name)] = Thread(name, (int(used[0]) + int(used[1])) / 1e9)
    return found


def were_quiet(before: Threads, after: Threads, passed_s: float) -> bool:
    """Return whether they computed nothing, waited for no core and no disk, and none started or
    ended."""
    if before.keys() != after.keys():
        return False
    # the time of a wait for a core counts only once the thread has the core; until then it is in
    # state R
    if not all(thread.state in _AT_REST for thread in after.values()):
        return False
    used_s = sum(after[name].used_s - before[name].used_s for name in after)
    return used_s <= _LITTLE * passed_s


def told_of(pids: list[int]) -> Iterator[str]:
    """Yield a line for each thread: its place in the kernel."""
    for pid in pids:
        for thread in _threads_of(pid):
            try:
                name = (thread / "comm").read_text().strip()
                waits_in = (thread / "wchan").read_text().strip()
                yield f"{pid}/{thread.name} {name}: {state(int(thread.name))} {waits_in}"
            except OSError:
                continue


def _threads_of(pid: int) -> list[Path]:
    folder = PROC / str(pid) / "task"
    try:
        return [folder / name for name in os.listdir(folder)]  # noqa: PTH208  # names alone
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(stat: str) -> str:
    return stat.rpartition(")")[2].split(None, 1)[0]
