"""Exit codes of all `antefix` commands."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_RUNNING = 3
    CONFLICT = 4
    DEGRADED = 5
    INVALID_FLEET = 6
    GATE = 7
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed, with the remedy in the message",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.NOT_RUNNING: "no fleet is running here",
    ExitCode.CONFLICT: "another fleet runs here, the port is taken, or a change needs a restart",
    ExitCode.DEGRADED: "the fleet runs, but a pool has no running replica, the gateway does not"
    " answer, or a pod is not ready",
    ExitCode.INVALID_FLEET: "the fleet file is wrong",
    ExitCode.GATE: "a model lost more than the limits allow",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C",
}


def explained() -> str:
    return "Exit codes: " + "; ".join(f"{code} {words}" for code, words in MEANINGS.items()) + "."
