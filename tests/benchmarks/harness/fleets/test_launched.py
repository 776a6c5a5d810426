"""Programs that a benchmark starts say when they are ready, and end with all they started."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from benchmarks.harness.fleets.launched import STOP_S, Launched, cpu_seconds

BUSY = """
import json, subprocess, sys, time
asked = json.loads(sys.stdin.readline())
while time.process_time() < asked["cpu_s"]:
    pass
print(json.dumps({"cpu_s": time.process_time()}), flush=True)
sys.stdin.read()
"""


def test_the_cpu_time_of_child_processes_counts_for_the_program(tmp_path: Path) -> None:
    shell = ["sh", "-c", f"{sys.executable} -c '{BUSY}'; true"]
    started = Launched(shell, tmp_path / "busy.log", asked={"cpu_s": 0.2})
    try:
        assert started.said(within_s=60)["cpu_s"] >= 0.2
        # the system counts in hundredths
        assert cpu_seconds([started.pid]) >= 0.1
    finally:
        started.stop()
    assert started.has_ended


def test_a_program_that_is_not_ready_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import sys; sys.exit('no such flag')"]
    started = Launched(program, tmp_path / "smg.log", asked={})
    try:
        with pytest.raises(RuntimeError, match=r"smg (ended|does not get ready):\nno such flag"):
            started.said(within_s=60)
    finally:
        started.stop()


def test_a_program_that_takes_long_to_end_is_killed(tmp_path: Path) -> None:
    started = Launched(["sh", "-c", "trap '' TERM; echo up; sleep 600"], tmp_path / "smg.log")
    while not started.log.read_text():
        time.sleep(0.01)
    (shell, *children) = [psutil.Process(started.pid), *psutil.Process(started.pid).children()]
    began = time.monotonic()
    started.stop(within_s=0.1)
    assert time.monotonic() - began < STOP_S
    assert not psutil.wait_procs([shell, *children], timeout=10)[1]


def test_processes_with_excluded_names_are_not_counted(tmp_path: Path) -> None:
    shell = ["sh", "-c", f"exec {sys.executable} -c '{BUSY}'"]
    started = Launched(shell, tmp_path / "busy.log", asked={"cpu_s": 0.2})
    try:
        started.said(within_s=60)
        assert cpu_seconds([started.pid]) >= 0.1
        assert cpu_seconds([started.pid], without=("engine", sys.executable)) == 0
    finally:
        started.stop()
