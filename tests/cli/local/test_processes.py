"""Plain `sleep`s and a real redis-server stand in for a fleet's processes."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cli.local import processes, redis_server

# Titles are changed with this by Ray and vLLM alike.
RENAMED = "import setproctitle, time; setproctitle.setproctitle('x' * 4000); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(600)"
)
ORPHANING = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"


class Started:
    def __init__(self) -> None:
        self.run_id = secrets.token_hex(16)
        self.stack = ExitStack()

    def start(self, *command: str, run_id: str | None = None) -> subprocess.Popen[bytes]:
        env = {**os.environ, **processes.marker(run_id or self.run_id)}
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def pids(self) -> set[int]:
        return {process.pid for process in processes.processes(self.run_id)}


@pytest.fixture
def started() -> Iterator[Started]:
    started = Started()
    with started.stack:
        yield started
        processes.stop(started.run_id)


def test_only_processes_with_the_run_id_belong(started: Started) -> None:
    ours = started.start("sleep", "600")
    started.start("sleep", "600", run_id="another")
    assert started.pids() == {ours.pid}


def test_a_process_that_changed_its_title_still_belongs_to_the_run(started: Started) -> None:
    renamed = started.start(sys.executable, "-c", RENAMED)
    wait_until_title_begins_with(renamed.pid, b"x")
    assert started.pids() == {renamed.pid}


def test_an_orphan_in_a_separate_session_still_belongs_to_the_run(started: Started) -> None:
    parent = started.start(sys.executable, "-c", ORPHANING)
    parent.wait()
    (orphan,) = processes.processes(started.run_id)
    assert orphan.name() == "sleep"
    processes.stop(started.run_id)
    assert started.pids() == set()


def test_a_redis_that_overwrites_its_environment_belongs_to_the_run(
    started: Started, tmp_path: Path
) -> None:
    env = {**os.environ, **processes.marker(started.run_id)}
    server = redis_server.start(tmp_path / started.run_id, tmp_path / "redis.log", env)
    started.stack.callback(redis_server.stop, server)
    assert started.pids() == {server.pid}


def test_a_shell_in_the_folder_of_a_redis_does_not_belong(started: Started, tmp_path: Path) -> None:
    folder = tmp_path / started.run_id
    folder.mkdir()
    with subprocess.Popen(["sleep", "600"], cwd=folder) as shell:
        found = started.pids()
        shell.kill()
    assert found == set()


def test_stop_ends_all_processes_of_a_run_and_no_others(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.5)
    stubborn = started.start(sys.executable, "-c", STUBBORN)
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    for _ in range(3):
        started.start("sleep", "600")
    suspended = started.start("sleep", "600")
    suspended.send_signal(signal.SIGSTOP)
    spared = started.start("sleep", "600", run_id="another")
    processes.stop(started.run_id)
    assert started.pids() == set()
    assert spared.poll() is None


def test_stop_without_processes_succeeds() -> None:
    processes.stop(secrets.token_hex(16))


def test_a_run_without_ray_is_not_alive(started: Started) -> None:
    started.start("sleep", "600")
    assert not processes.core_is_alive(started.run_id)


def wait_until_title_begins_with(pid: int, title: bytes) -> None:
    for _ in range(1000):
        if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(title):
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError(f"process {pid} did not change its title")
