"""Exit codes of all `antefix` commands. A check that could not run never exits with 0 or 1."""

from enum import IntEnum
from typing import NamedTuple


class ExitCode(IntEnum):
    OK = 0
    FOUND = 1
    USAGE = 2
    NOT_RUNNING = 3
    ALREADY_RUNNING = 4
    NOT_READY = 5
    INVALID_FILE = 6
    GATE = 7
    FAILED = 8
    PORT_TAKEN = 9
    RESTART_REQUIRED = 10
    UNREACHABLE = 11
    DECLINED = 12
    INTERRUPTED = 130


class Meaning(NamedTuple):
    """`commands`: those that exit with the code. `reaction`: what a script does then."""

    text: str
    commands: str
    reaction: str


MEANINGS = {
    ExitCode.OK: Meaning("done", "all", "Continue."),
    ExitCode.FOUND: Meaning(
        "done, and problems or differences were found",
        "`doctor`, `verify`, `prove-resume`, `grafana diff` and `push`, `k8s preflight`, `diff` and"
        " `accept`",
        "Read the output, which lists them.",
    ),
    ExitCode.USAGE: Meaning("invalid command line", "all", "Correct the command line."),
    ExitCode.NOT_RUNNING: Meaning(
        "no fleet is running on this machine, or the namespace has no such release",
        "all that need a fleet or a release",
        "Run `antefix up` or `helm install`.",
    ),
    ExitCode.ALREADY_RUNNING: Meaning(
        "another fleet is already running",
        "`up`",
        "Run `antefix update`, or `antefix down` first.",
    ),
    ExitCode.NOT_READY: Meaning(
        "the fleet or release is running, but is not ready: a pool has no running replica, or a"
        " pod is not ready",
        "`status`, `verify`, `calibrate`, `k8s status`, `k8s accept`",
        "Wait, then repeat the command.",
    ),
    ExitCode.INVALID_FILE: Meaning(
        "a fleet file or SLO file is invalid",
        "all that read one",
        "Correct the file. `antefix config check` and `antefix slo check` list every fault.",
    ),
    ExitCode.GATE: Meaning(
        "the loss of quality exceeds a limit", "`evaluate`", "Reject the candidate model."
    ),
    ExitCode.FAILED: Meaning(
        "failed for another reason", "all", "Stop, and show the message, which has the remedy."
    ),
    ExitCode.PORT_TAKEN: Meaning(
        "another program listens on the port", "`up`", "Pass another port, or `--port 0`."
    ),
    ExitCode.RESTART_REQUIRED: Meaning(
        "the change cannot be applied to a running fleet",
        "`update`",
        "Run `antefix down`, then `antefix up`.",
    ),
    ExitCode.UNREACHABLE: Meaning(
        "the gateway or API does not answer",
        "all that send requests",
        "Check the address, or repeat the command later.",
    ),
    ExitCode.DECLINED: Meaning(
        "not confirmed, so nothing was done",
        "`k8s accept`",
        "Answer `y`, or pass `--yes` to run without asking.",
    ),
    ExitCode.INTERRUPTED: Meaning("stopped by Ctrl-C", "all", "Stop."),
}


def explained() -> str:
    """Return one line per exit code. The help joins single line breaks, so lines are paragraphs."""
    lines = (f"{code}: {meaning.text}" for code, meaning in MEANINGS.items())
    return "\n".join(["Exit codes:", *lines])
