"""Copy the logs of a pod's Ray processes to stdout, as JSON: log collectors read only stdout.

    python -m deployments.process.log_to_stdout gateway
    python -m deployments.process.log_to_stdout engine POOL
    python -m deployments.process.log_to_stdout head

Gateways, engines and Ray write to the files of Ray's session. A JSON line of a gateway or an engine
(`deployments.process.serve_log`) is copied unchanged. A line of text, such as vLLM's, becomes the
`message` of an object.

The program runs in Ray's container while `ray start` does. A slow reader of stdout delays only this
program, and no gateway or engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

LOGS = Path("/tmp/ray/session_latest/logs")
PERIOD_S = 0.25
# A line without an end is copied when its file has not changed for this long: its process died.
UNFINISHED_S = 5.0
# Most bytes of a file that are read at once.
MOST_BYTES = 1_000_000

# Ray's autoscaler, in the head's pod, has a separate container and stdout.
OF_HEAD = ("serve/controller_*.log*", "gcs_server.out*")
OF_REPLICAS = ("serve/replica_*.log*", "worker-*.out*", "worker-*.err*")
# By these lines, Ray finds out which process a file belongs to.
_OF_RAY = (b":job_id:", b":actor_name:", b":task_name:")
_LEVEL = re.compile(r"\b(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_LEVEL_WITHIN = 60  # characters: behind a process's name, as vLLM writes it
# How Ray's C++ code begins a line, with the first letter of the level.
_OF_CPP = re.compile(r"\[\d{4}-\d\d-\d\d \S+ ([DIWEF]) ")
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
# Ray's GCS writes its statistics once a minute, in hundreds of lines below one that ends so.
_STATISTICS = (" stats:", " state:")
_COLORS = re.compile(r"\x1b\[[\d;]*m")


class LogFiles:
    """The files of a folder that match `patterns`; each look continues where the last one ended.

    A file is known by its inode, so a rotated file is neither lost nor read again. After the oldest
    rotated file is deleted, a new file may get its inode: it is recognized by its smaller size.
    """

    def __init__(self, folder: Path, patterns: Sequence[str]) -> None:
        self._folder, self._patterns = folder, patterns
        self._offsets: dict[int, int] = {}  # in bytes, by inode

    def skip(self) -> None:
        """Skip what the files contain now."""
        for _, stat in self._found():
            self._offsets[stat.st_ino] = stat.st_size

    def new_lines(self) -> Iterator[tuple[Path, bytes]]:
        """Yield new lines, each with its file; at most MOST_BYTES per file."""
        for path, stat in self._found():
            if stat.st_size == self._offsets.get(stat.st_ino, 0):
                continue
            with contextlib.suppress(OSError):
                for line in self._new_lines(path):
                    yield path, line

    def _found(self) -> list[tuple[Path, os.stat_result]]:
        """Return the files, those with older lines first."""
        paths = {path for pattern in self._patterns for path in self._folder.glob(pattern)}
        found = []
        # x.log.2 has older lines than x.log.1, though both may have changed at the same moment
        for path in sorted(paths, reverse=True):
            with contextlib.suppress(FileNotFoundError):  # just renamed: the next look finds it
                found.append((path, path.stat()))
        return sorted(found, key=lambda entry: entry[1].st_mtime)

    def _new_lines(self, path: Path) -> list[bytes]:
        with path.open("rb") as file:
            # of the open file: another one may have got this name
            stat = os.fstat(file.fileno())
            begin = self._offsets.get(stat.st_ino, 0)
            if begin > stat.st_size:
                begin = 0
            file.seek(begin)
            data = file.read(MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        if len(data) == MOST_BYTES:
            whole = whole or data
        elif time.time() - stat.st_mtime > UNFINISHED_S:
            whole = data
        self._offsets[stat.st_ino] = begin + len(whole)
        return whole.splitlines()


def _json_line(path: Path, line: bytes, component: str, pool: str = "") -> bytes:
    """Return a line of a file as JSON; empty if it is not for readers."""
    if path.parent.name == "serve" and line.startswith(b"{") and line.endswith(b"}"):
        return line
    text = _COLORS.sub("", line.decode(errors="replace")).rstrip()
    if not text or line.startswith(_OF_RAY):
        return b""
    of_cpp = _OF_CPP.match(text)
    if path.name.startswith("gcs_server") and (of_cpp is None or text.endswith(_STATISTICS)):
        return b""
    told = {"timestamp": datetime.now(UTC).isoformat(timespec="milliseconds")}
    if of_cpp is not None:
        told["level"] = _LETTERS[of_cpp[1]]
    elif level := _LEVEL.search(text[:_LEVEL_WITHIN]):
        told["level"] = level[1]
    is_controller = path.name.startswith("controller_")
    told |= {"message": text, "component": "controller" if is_controller else component}
    if pool:
        told["pool"] = pool
    told["file"] = path.name
    return json.dumps(told, separators=(",", ":")).encode()


def copy_new_lines(files: LogFiles, target: BinaryIO, component: str, pool: str = "") -> None:
    while new := list(files.new_lines()):
        lines = (_json_line(path, line, component, pool) for path, line in new)
        target.writelines(line + b"\n" for line in lines if line)
        target.flush()


def main() -> None:
    component, pool = (*sys.argv[1:], "")[:2]
    files = LogFiles(LOGS, OF_HEAD if component == "head" else OF_REPLICAS)
    # of an earlier container of this pod
    files.skip()
    shell = os.getppid()
    goes_on = True
    while goes_on:
        goes_on = os.getppid() == shell
        copy_new_lines(files, sys.stdout.buffer, component, pool)
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
