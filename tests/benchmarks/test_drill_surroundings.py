"""What chaos tests do to a machine: only what they are for, and nothing of it is left."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from benchmarks.drills import surroundings
from benchmarks.drills.cut_off import CLASS_ID, cut_off, rules
from common.errors import Problem

# Sends a byte each 0.1 s.
SENDER = """
import socket, sys, time
to = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while True:
    to.sendall(b"x")
    time.sleep(0.1)
"""


def test_rules_drop_open_and_new_connections_except_of_child_processes() -> None:
    text = rules("drill", [(8000, 0), (41000, 6379), (8000, 52000)], [5555])
    to_it, from_it = text.split("chain output")
    for chain, mine, others in ((to_it, "dport", "sport"), (from_it, "sport", "dport")):
        lines = chain.splitlines()
        first = lines.index("tcp sport { 5555 } accept")
        assert lines.index(f"tcp {mine} {{ 8000 }} drop") > first
        assert f"tcp {mine} . tcp {others} {{ 8000 . 52000, 41000 . 6379 }} drop" in lines
    assert f"meta cgroup {CLASS_ID} drop" in from_it and "meta cgroup" not in to_it


def test_a_process_that_is_cut_off_reaches_no_server_until_reconnected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        port = str(server.getsockname()[1])
        with (
            subprocess.Popen([sys.executable, "-c", SENDER, port]) as sender,
            server.accept()[0] as heard,
        ):
            try:
                assert _is_heard(heard, 60)
                with cut_off(psutil.Process(sender.pid)):
                    _is_heard(heard, 0.1)  # what was on its way
                    assert not _is_heard(heard, 1)
                assert _is_heard(heard, 60)
            except Problem as problem:
                pytest.skip(f"{problem.message}: {problem.remedy}")
            finally:
                sender.kill()
    tables = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True)
    assert f"antefix_drill_{os.getpid()}" not in tables.stdout
    assert "afx-net-cls" not in Path("/proc/mounts").read_text()


def _is_heard(heard: socket.socket, within_s: float) -> bool:
    heard.settimeout(within_s)
    try:
        return bool(heard.recv(1000))
    except TimeoutError:
        return False


def test_a_small_disk_is_full_and_then_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "DISK_BYTES", 1 << 20)
    before = tempfile.gettempdir()
    with surroundings.small_disk():
        disk = Path(tempfile.gettempdir())
        if str(disk) == before:
            pytest.skip("no disk may be mounted here: run the tests as root")
        filler = surroundings.fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (disk / "more").write_bytes(b"0")
        filler.unlink()
        (disk / "more").write_bytes(b"0")
    assert tempfile.gettempdir() == before and not disk.exists()


def test_the_machines_own_disk_is_not_filled(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="others have too"):
        surroundings.fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_does_not_set_the_clock_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12 has one under which no Python process can sleep."""
    (bad := tmp_path / "libfaketime.so.1").write_text("")
    monkeypatch.setattr(surroundings, "_LIBRARIES", [str(bad)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Problem, match=rf"{bad} sets no clock.*pip install libfaketime"):
        surroundings.library()
    monkeypatch.setattr(surroundings, "_LIBRARIES", [])
    with pytest.raises(Problem, match="there is no libfaketime"):
        surroundings.library()


def test_the_clock_is_changed_only_for_processes_started_with_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(surroundings, "library", lambda: "")
    with pytest.raises(Problem):
        surroundings.set_clock(60)
    with surroundings.settable_clock():
        file = Path(os.environ["FAKETIME_TIMESTAMP_FILE"])
        surroundings.set_clock(3600)
        assert file.read_text() == "+3600"
        surroundings.set_clock(-7200)
        assert file.read_text() == "-3600"
    assert "FAKETIME_TIMESTAMP_FILE" not in os.environ and not file.exists()
