"""Processes on all cores end with the benchmark that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.harness.results.cores import all_cores

CORES = os.cpu_count() or 1

BENCHMARK = f"""\
import subprocess
import time
from benchmarks.harness.results.cores import all_cores
from benchmarks.harness.results.ending import stopped_in_the_end

def busy(number):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(number, flush=True)
    time.sleep(600)

with stopped_in_the_end(), all_cores() as cores:
    list(cores.map(busy, range({2 * CORES})))
"""


@contextmanager
def busy_benchmark(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A benchmark each of whose workers has begun a task, and all processes of it."""
    script = folder / "busy.py"
    script.write_text(BENCHMARK)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[4])},
    ) as benchmark:
        assert benchmark.stdout is not None
        for _ in range(CORES):  # a process that a task has only just forked is not yet a `sleep`
            benchmark.stdout.readline()
        processes = psutil.Process(benchmark.pid).children(recursive=True)
        try:
            yield benchmark, processes
        finally:
            benchmark.kill()
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_child_processes_of_tasks_end_with_the_benchmark(
    how: signal.Signals, tmp_path: Path
) -> None:
    with busy_benchmark(tmp_path) as (benchmark, processes):
        assert "sleep" in {process.name() for process in processes}
        benchmark.send_signal(how)
        assert benchmark.wait(60) != 0
        _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_workers_end_with_a_killed_benchmark(tmp_path: Path) -> None:
    with busy_benchmark(tmp_path) as (benchmark, processes):
        workers = psutil.Process(benchmark.pid).children()
        assert {worker.pid for worker in workers} < {process.pid for process in processes}
        benchmark.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_tasks_on_all_cores_return_what_they_compute() -> None:
    with all_cores() as cores:
        assert [*cores.map(abs, [-1, -2, -3])] == [1, 2, 3]
