"""A benchmark's own fleet does not outlive it."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.harness.fleets import fleet
from common.errors import Problem

STARTING = """
import time
from pathlib import Path
from benchmarks.harness.fleets import fleet

def run(command, **kwargs):
    print(command[3], flush=True)
    if command[3] == "up":
        time.sleep(60)

fleet.subprocess.run = run
with fleet.running(Path("fleet.yaml")):
    pass
"""


def test_a_benchmark_stops_its_fleet_on_sigterm() -> None:
    command = [sys.executable, "-c", STARTING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        assert benchmark.stdout.readline() == "up\n"
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.stdout.read() == "down\n"


def status_of(*urls: str | None) -> dict[str, Any]:
    return {"engine": {"replicas": [{"url": url} for url in urls]}}


def test_engines_that_are_too_busy_to_publish_are_waited_for() -> None:
    answers = iter([status_of("a", None), status_of("a"), status_of("a", "b")])
    assert fleet.engine_urls(lambda: next(answers), 2, again_s=0.0) == ["a", "b"]


def test_an_engine_that_stays_unknown_is_reported() -> None:
    with pytest.raises(Problem, match="knows the addresses of 1 of 2 engines"):
        fleet.engine_urls(lambda: status_of("a", None), 2, again_s=0.0)
