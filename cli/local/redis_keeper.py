"""Restart the embedded Redis whenever it ends: python -I redis_keeper.py

stdin gets one JSON object: {"pid", "command", "configuration", "folder"}. Each new Redis gets the
same configuration on its stdin, so it has the same port and password. It starts empty, and
replicas publish their blocks again.

It is a separate process, because no other process of a fleet outlives both `antefix up` and a crash
of Ray. It uses only the standard library, so that it is small. `antefix down` ends it before Redis.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time

STEADY_S = 60.0
LONGEST_PAUSE_S = 30.0


def next_pause_s(pause_s: float, lived_s: float) -> float:
    """Return the pause before the next start, after a Redis that lived for `lived_s` seconds."""
    return 0.0 if lived_s >= STEADY_S else min(max(1.0, 2 * pause_s), LONGEST_PAUSE_S)


def main() -> None:
    told = json.load(sys.stdin)
    _wait_for_end(told["pid"])
    pause_s = 0.0
    while True:
        _say(f"the embedded Redis exited; Antefix restarts it in {pause_s:g} s")
        time.sleep(pause_s)
        began = time.monotonic()
        _run(told["command"], told["configuration"], told["folder"])
        pause_s = next_pause_s(pause_s, time.monotonic() - began)


def _wait_for_end(pid: int) -> None:
    """Wait for the end of a process that is not a child."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([descriptor], [], [])
    os.close(descriptor)


def _run(command: list[str], configuration: str, folder: str) -> None:
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder, text=True)
    except OSError as error:
        _say(f"{command[0]} cannot be run: {error}")
        return
    with contextlib.suppress(BrokenPipeError):  # it ended at once; the reason is in its log
        process.communicate(configuration)
    process.wait()


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)


if __name__ == "__main__":
    main()
