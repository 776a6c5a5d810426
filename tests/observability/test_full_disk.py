"""A process whose metric files are on a disk that is full goes on, and counts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import os, sys
from pathlib import Path
from prometheus_client import Counter, Gauge
from observability.metrics import exporter
from observability.metrics import metric_files

folder = Path(sys.argv[1])
filler = os.open(folder / "filler", os.O_WRONLY | os.O_CREAT)

def fill():
    try:
        while True:
            os.write(filler, bytes(4096))
    except OSError as error:
        print(error.strerror)

def told(name):
    samples = [
        sample
        for files in metric_files.gateway_files(folder)
        for metric in exporter._merged(files)
        for sample in metric.samples
    ]
    return sum(sample.value for sample in samples if sample.name == name)

metric_files.write_as_gateway(folder)
early = Counter("early", "Counted before the disk was full.", ["of"])
early.labels("0").inc()
fill()
late = Gauge("late", "Its file is to be made on a full disk.", multiprocess_mode="sum")
for _ in range(2):
    late.inc()
    for of in range(2000):
        early.labels(f"{of:0100}").inc()
print(told("early_total") >= 1.0, told("late"))
os.ftruncate(filler, 0)
late.inc()
for of in range(2000):
    early.labels(f"{of:0100}").inc()
print(told("early_total"), told("late"))
"""
# A file system of the process's own: no right of the machine's is needed, and nothing is left.
MOUNTED = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'


def test_a_process_on_a_full_disk_keeps_counting_and_writes_its_counts_later(
    tmp_path: Path,
) -> None:
    unshare = [shutil.which("unshare") or "", "--user", "--map-root-user", "--mount"]
    may = [*unshare, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not unshare[0] or subprocess.run(may, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets no process have a separate file system")
    done = subprocess.run(
        [*unshare, "sh", "-c", MOUNTED, "sh", str(tmp_path), sys.executable, PROCESS],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert done.stdout.splitlines() == [
        "No space left on device",
        "True 0",
        "6001.0 3.0",
    ]
    assert done.stderr.count("failed to make room for new metrics") == 2, "once for each file"
