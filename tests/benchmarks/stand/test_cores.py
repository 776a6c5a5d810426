"""Processes on all cores end with the benchmark that started them, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from benchmarks.stand.cores import all_cores

BENCHMARK = """\
import subprocess
import time
from benchmarks.stand.cores import all_cores
from benchmarks.stand.ending import stopped_in_the_end

def busy(number):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(number, flush=True)
    time.sleep(600)

with stopped_in_the_end(), all_cores() as cores:
    list(cores.map(busy, range(100)))
"""


@contextmanager
def busy_benchmark(folder: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A benchmark whose first task has begun, and its processes."""
    script = folder / "busy.py"
    script.write_text(BENCHMARK)
    with subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    ) as benchmark:
        assert benchmark.stdout is not None
        benchmark.stdout.readline()
        workers = psutil.Process(benchmark.pid).children(recursive=True)
        try:
            yield benchmark, workers
        finally:
            benchmark.kill()
            for worker in workers:
                with suppress(psutil.NoSuchProcess):
                    worker.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_nothing_that_tasks_started_outlives_a_benchmark(
    how: signal.Signals, tmp_path: Path
) -> None:
    with busy_benchmark(tmp_path) as (benchmark, processes):
        assert "sleep" in {process.name() for process in processes}
        benchmark.send_signal(how)
        assert benchmark.wait(60) != 0
        _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_no_worker_outlives_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    with busy_benchmark(tmp_path) as (benchmark, processes):
        workers = [process for process in processes if process.name() != "sleep"]
        benchmark.kill()
        _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


def test_tasks_on_all_cores_return_what_they_compute() -> None:
    with all_cores() as cores:
        assert [*cores.map(abs, [-1, -2, -3])] == [1, 2, 3]
