"""Linux's facts about memory: how much is used, and how many processes the kernel killed for it.

The cgroup of this process counts, so that a neighbor's lack of memory does not; without one, the
whole machine does. Ray's memory monitor kills at the same share of used memory that counts as low
here. Unreadable files count as none killed and none used. Sources: Documentation/admin-guide/
cgroup-v2.rst and cgroup-v1/memory.rst of Linux; `MemoryMonitor` of Ray 2.60.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Ray's own setting, and its default.
THRESHOLD, DEFAULT_THRESHOLD = "RAY_memory_usage_threshold", 0.95
# A process with much memory takes seconds to end.
LATELY = 40


@dataclass(frozen=True)
class MemoryLook:
    """An observation. `killed`: processes that the kernel has killed for lack of memory so far.
    `used`: the share of the memory that is in use."""

    killed: int
    used: float


def look(root: Path = Path("/")) -> MemoryLook:
    """Return the current state. `root`: the root of the file system."""
    v2, v1 = _cgroups(root)
    return MemoryLook(_killed(root, v2, v1), max(_used_of_cgroup(v2), _used_of_machine(root)))


def low_at() -> float:
    """Return the share of used memory at which Ray kills workers."""
    try:
        return float(os.environ.get(THRESHOLD, DEFAULT_THRESHOLD))
    except ValueError:
        return DEFAULT_THRESHOLD


class MemoryWatch:
    """The latest observations of one process's memory."""

    def __init__(self, low: float | None = None) -> None:
        self._low = low_at() if low is None else low
        self._looks: deque[MemoryLook] = deque(maxlen=LATELY)

    def take(self, seen: MemoryLook) -> None:
        self._looks.append(seen)

    @property
    def is_low(self) -> bool:
        """Whether the last observation was of low memory."""
        return bool(self._looks) and self._looks[-1].used >= self._low

    @property
    def ran_out(self) -> bool:
        """Whether a process that has just been killed was killed for lack of memory."""
        if not self._looks:
            return False
        first, *_, last = self._looks if len(self._looks) > 1 else (self._looks[0],) * 2
        # the last one may be from after the death, which freed the memory
        lately = [*self._looks][-3:]
        return last.killed > first.killed or any(each.used >= self._low for each in lately)


def _cgroups(root: Path) -> tuple[Path | None, Path | None]:
    """Return this process's memory cgroup of version 2, and of version 1."""
    v2 = v1 = None
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        place = path.lstrip("/")
        if not controllers:
            v2 = root / "sys/fs/cgroup" / place
        elif "memory" in controllers.split(","):
            v1 = root / "sys/fs/cgroup/memory" / place
    return v2, v1


def _killed(root: Path, v2: Path | None, v1: Path | None) -> int:
    for file in (v2 and v2 / "memory.events", v1 and v1 / "memory.oom_control"):
        if file and "oom_kill" in (found := _numbers(_read(file))):
            return found["oom_kill"]
    return _numbers(_read(root / "proc/vmstat")).get("oom_kill", 0)


def _used_of_cgroup(v2: Path | None) -> float:
    if v2 is None:
        return 0.0
    limit, used = _read(v2 / "memory.max").strip(), _read(v2 / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit() or not int(limit):
        return 0.0
    cached = _numbers(_read(v2 / "memory.stat")).get("inactive_file", 0)
    return (int(used) - cached) / int(limit)


def _used_of_machine(root: Path) -> float:
    found = _numbers(_read(root / "proc/meminfo"))
    total, available = found.get("MemTotal:", 0), found.get("MemAvailable:", 0)
    return 1 - available / total if total and available else 0.0


def _numbers(text: str) -> Mapping[str, int]:
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
