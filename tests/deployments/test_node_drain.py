"""A node is drained: its processes leave, finish what they have, and the pod may end.

Processes of the fleet are real ones here; what they serve is a number of requests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deployments.node_drain import drain
from deployments.process import node_drain

PROCESS = """
import asyncio, sys
from pathlib import Path
from deployments.node_drain import drain
from deployments.process import node_drain

node, requests, begun = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])

async def begin(after_s):
    begun.write_text(str(after_s))

asyncio.run(node_drain.follow(node, begin, lambda: int(requests.read_text())))
"""


class Process:
    """One of a node's, with as many requests as `has` says."""

    def __init__(self, node: str, folder: Path) -> None:
        self._requests, self._begun = folder / "requests", folder / "begun"
        self.has(0)
        command = [sys.executable, "-c", PROCESS, node, str(self._requests), str(self._begun)]
        self._process = subprocess.Popen(command)
        wait_for((node_drain.folder_of(node) / str(self._process.pid)).exists)

    def has(self, requests: int) -> None:
        part = self._requests.with_suffix(".part")
        part.write_text(str(requests))
        part.replace(self._requests)

    @property
    def begun_after(self) -> str:
        return self._begun.read_text() if self._begun.exists() else ""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Other fleets of this machine have theirs; and no Ray has a node of that name."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process("node", tmp_path)
    yield started
    started.kill()


def wait_for(is_so: Callable[[], object]) -> None:
    ends = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


def drain_reports() -> list[str]:
    """What each process says; one that is just writing it has a second file."""
    files = node_drain.folder_of("node").glob("[0-9]*")
    return [file.read_text() for file in files if not file.suffix]


def begin_drain(node: str | None = "node", within_s: float = 60) -> subprocess.Popen[str]:
    which = ["--node-id", node] if node else []
    command = [
        *(sys.executable, "-m", "deployments.node_drain", *which),
        *("--after", "7", "--within", str(within_s)),
    ]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, cwd=Path.cwd())


def test_a_drain_returns_when_no_request_is_left(process: Process) -> None:
    process.has(2)
    drain = begin_drain()
    wait_for(lambda: process.begun_after)
    assert process.begun_after == "7.0"
    wait_for(lambda: "2" in drain_reports())
    assert drain.poll() is None
    process.has(0)
    assert drain.wait(60) == 0


def test_a_drain_waits_for_a_process_that_has_not_reported_yet(process: Process) -> None:
    """It says "-" until it has settled: a caller that asked at once would not see what is on its
    way."""
    assert drain_reports() == ["-"]
    drain = begin_drain()
    wait_for(lambda: process.begun_after)
    assert drain.poll() is None
    assert drain.wait(60) == 0


def test_a_drain_times_out_and_reports_the_remaining_processes(process: Process) -> None:
    process.has(1)
    drain = begin_drain(within_s=0.5)
    said, _ = drain.communicate(timeout=120)
    assert "1 processes still have requests after 0.5 s" in said


def test_a_killed_process_is_not_waited_for(process: Process) -> None:
    process.has(1)
    drain = begin_drain()
    wait_for(lambda: process.begun_after)
    process.kill()
    assert drain.wait(60) == 0


def test_a_drain_does_not_affect_other_nodes(process: Process) -> None:
    drain = begin_drain("another")
    assert drain.wait(60) == 0
    assert process.begun_after == ""


def test_without_a_node_id_the_local_node_is_drained(process: Process) -> None:
    assert begin_drain(None).wait(60) == 0
    assert process.begun_after == "7.0"


def test_a_drain_without_processes_ends_at_once(own_folder: None) -> None:
    """As in a spare pod: without Ray either, which may be gone."""
    assert drain(None, after_s=10, within_s=0)


def test_a_program_that_drains_does_not_import_ray() -> None:
    """On a busy core the import takes longer than an idle engine's whole drain."""
    program = "import sys, deployments.node_drain; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_other_users_may_not_request_a_drain(process: Process) -> None:
    assert process
    folder = node_drain.folder_of("node")
    assert folder.stat().st_mode & 0o077 == 0 and folder.stat().st_uid == os.getuid()
