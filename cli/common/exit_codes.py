"""Exit codes of all `antefix` commands. A check that could not run never exits with 0 or 1."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FOUND = 1
    USAGE = 2
    NOT_RUNNING = 3
    CONFLICT = 4
    DEGRADED = 5
    INVALID_FLEET = 6
    GATE = 7
    FAILED = 8
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FOUND: "done, and problems or differences were found",
    ExitCode.USAGE: "invalid usage",
    ExitCode.NOT_RUNNING: "no fleet is running here",
    ExitCode.CONFLICT: "another fleet runs here, the port is taken, or a change needs a restart",
    ExitCode.DEGRADED: "the fleet runs, but a pool has no running replica, the gateway does not"
    " answer, or a pod is not ready",
    ExitCode.INVALID_FLEET: "the fleet file is wrong",
    ExitCode.GATE: "quality loss exceeds the limits",
    ExitCode.FAILED: "could not run, or failed; the message has the remedy",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
}


def explained() -> str:
    """Return one line per exit code. The help joins single line breaks, so lines are paragraphs."""
    return "\n".join(["Exit codes:", *(f"{code}: {words}" for code, words in MEANINGS.items())])
