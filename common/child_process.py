"""Run a Python module in a child process that reports its progress in lines on standard output.

<fraction> <what it does>
error {"message": ..., "remedy": ...}
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from common.errors import Problem

Report = Callable[[float, str], None]
"""Takes how much is done, from 0 to 1, and what is being done."""


def run_module(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    report: Report,
    lock_fd: int,
) -> int:
    """Return the exit code of the module, run in `folder`.

    The child's standard error goes to `log`. The child also holds the lock `lock_fd`, and ends if
    an exception is raised here. Raises the `Problem` that the child reports.
    """
    told: Problem | None = None
    with (
        log.open("w") as complaints,
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            pass_fds=(lock_fd,),
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if step := re.fullmatch(r"([\d.]+) (.+)\n", line):
                    report(float(step[1]), step[2])
                elif line.startswith("error "):
                    told = Problem(**json.loads(line.removeprefix("error ")))
        except BaseException:
            process.kill()
            raise
    if told is not None:
        raise told
    return process.returncode
