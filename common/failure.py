"""The reason for a failed deployment in one line, from a traceback or the engines' logs."""

from __future__ import annotations

import re
from pathlib import Path

_ERROR = re.compile(r"\b((?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b: ?.+)")
# Messages of vLLM and Ray whose reason is elsewhere.
_SAYS_NOTHING = re.compile(
    r"See root cause above|Engine core initialization failed|RayTaskError|RayActorError|"
    r"cancelled|ActorDiedError"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_LOG_PREFIX = re.compile(r"^\(.*?pid=\d+\)\s*")
LONGEST = 400
BYTES_READ = 200_000


def gist(message: str, logs: Path | None = None) -> str:
    """Return the last line of `message` that gives a reason, or otherwise of an engine's log.

    `logs` is Ray's folder of engine logs.
    """
    found = _reason(message.splitlines()) or (_reason_in_logs(logs) if logs else "")
    return found or _last_line(message)


def _reason(lines: list[str]) -> str:
    for number, line in reversed(list(enumerate(lines))):
        found = _ERROR.search(_ANSI.sub("", line))
        if found and not _SAYS_NOTHING.search(line):
            # pydantic, which checks vLLM's settings, gives the reason in the next lines.
            told_after = lines[number + 1 : number + 3] if "validation error" in line else []
            return " ".join(part.strip() for part in (found[1], *told_after))[:LONGEST]
    return ""


def _reason_in_logs(logs: Path) -> str:
    workers = [*logs.glob("worker-*.err"), *logs.glob("worker-*.out")]
    for file in sorted(workers, key=lambda f: f.stat().st_mtime, reverse=True):
        if reason := _reason(tail(file)):
            return reason
    return ""


def _last_line(message: str) -> str:
    lines = [_LOG_PREFIX.sub("", line).strip() for line in message.splitlines()]
    return next((line for line in reversed(lines) if line), "no reason was given")[:LONGEST]


def tail(file: Path) -> list[str]:
    """Return the last lines of a log, without its beginning if it is long."""
    with file.open("rb") as log:
        size = log.seek(0, 2)
        log.seek(max(0, size - BYTES_READ))
        return log.read().decode(errors="replace").splitlines()
