"""A benchmark's own fleet does not outlive it."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import urllib.request

import pytest

from benchmarks.stand import fleet

STARTING = """
import time
from pathlib import Path
from benchmarks.stand import fleet

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


def test_a_first_engine_that_was_too_busy_to_publish_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = [None, None, "http://127.0.0.1:9"]
    monkeypatch.setattr(fleet, "KNOWN_AGAIN_S", 0.0)
    monkeypatch.setattr(urllib.request, "urlopen", lambda status: answer_of(known.pop(0)))
    assert fleet.first_engine(urllib.request.Request("http://gateway")) == "http://127.0.0.1:9"


def answer_of(url: str | None) -> io.BytesIO:
    status = {"pools": {"engine": {"replicas": [{"url": url}]}}}
    return io.BytesIO(json.dumps(status).encode())
