"""Cores that never halt, for what is measured in microseconds.

A core with nothing to do halts, and in a virtual machine it is its host that wakes it: each time
a process waits for another's answer that is tens of microseconds, much of it told as the waiting
process's own CPU time. Neither is the program's, and neither is there on a busy machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

# Linux runs such a process only while no other wants its core.
_SPIN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


@contextmanager
def cores_awake() -> Iterator[None]:
    """Keep all cores of this process busy with nothing, whatever else runs."""
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            spinning = subprocess.Popen([sys.executable, "-c", _SPIN, str(core)])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield
