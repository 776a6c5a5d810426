"""A benchmark's own fleet does not outlive it."""

from __future__ import annotations

import signal
import subprocess
import sys

STARTING = """
import time
from pathlib import Path
from benchmarks import fleet

def run(command, **kwargs):
    print(command[3], flush=True)
    if command[3] == "up":
        time.sleep(60)

fleet.subprocess.run = run
with fleet.running(Path("fleet.yaml")):
    pass
"""


def test_a_benchmark_that_is_told_to_end_stops_its_fleet() -> None:
    command = [sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "up\n"
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.stdout.read() == "down\n"
