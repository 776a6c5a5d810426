"""One real fleet from `up` to `down`, with a crash between. Its tests run in order."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.exit_codes import ExitCode
from cli.local import processes
from cli.local.home import Home

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

FLEET = """\
name: test
pools:
  engine:
    model: embedded
    resources: {cpus: 0.5}
    env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: nobind}
    engine_args: {dtype: float32, max_model_len: 512, max_num_seqs: 4, enforce_eager: true}
"""


class Fleet:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "fleet.yaml"
        self.file.write_text(FLEET)
        self.home = Home(folder / "home")
        self.foreground: subprocess.Popen[bytes] | None = None
        self._environment = {**os.environ, "ANTEFIX_HOME": str(self.home.folder)}

    def antefix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cli.main", *arguments]
        return self.run(command)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def up(self) -> subprocess.CompletedProcess[str]:
        return self.antefix("up", str(self.file), "--port", "0")

    def up_in_foreground(self) -> None:
        command = [sys.executable, "-m", "cli.main", "up", str(self.file)]
        crashed = self.run_id()
        up = subprocess.Popen([*command, "--port", "0", "--foreground"], env=self._environment)
        self.foreground = up
        deadline = time.monotonic() + 600
        while (state := self.home.state()) is None or state.run_id == crashed or not state.ready:
            assert up.poll() is None, "up ended"
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def run_id(self) -> str:
        state = self.home.state()
        assert state is not None
        return state.run_id


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="afx"))
    fleet = Fleet(folder)
    yield fleet
    fleet.antefix("down", "--now")
    if fleet.foreground is not None:
        fleet.foreground.wait(60)
    shutil.rmtree(folder, ignore_errors=True)


def test_up_answers_a_first_question(fleet: Fleet) -> None:
    done = fleet.up()
    assert done.returncode == ExitCode.OK, done.stderr
    assert "Paris" in done.stdout
    assert f"Authorization: Bearer {fleet.home.keys().api_key}" in done.stdout


def test_up_again_finds_it_running(fleet: Fleet) -> None:
    done = fleet.up()
    assert done.returncode == ExitCode.OK, done.stderr
    assert "already running" in done.stdout


def test_status_tells_of_its_replica(fleet: Fleet) -> None:
    done = fleet.antefix("status", "--json")
    assert done.returncode == ExitCode.OK, done.stderr
    assert json.loads(done.stdout)["pools"]["engine"]["states"] == {"RUNNING": 1}


def test_env_is_all_an_openai_client_needs(fleet: Fleet) -> None:
    python = f"{sys.executable} -c 'import openai; print(openai.OpenAI().models.list().data[0].id)'"
    antefix = f"{sys.executable} -m cli.main env"
    done = fleet.run(["sh", "-c", f'eval "$({antefix})" && {python}'])
    assert done.stdout.strip() == "smollm2-135m-instruct", done.stderr


def test_logs_name_their_component(fleet: Fleet) -> None:
    done = fleet.antefix("logs", "--component", "redis")
    assert "redis   | " in done.stdout


def test_the_last_lines_of_all_logs_are_no_more_than_asked_for(fleet: Fleet) -> None:
    shown = fleet.antefix("logs", "-n", "15").stdout
    assert len(shown.splitlines()) == 15
    assert "[state-dump]" not in shown


def test_every_process_carries_the_run_id(fleet: Fleet) -> None:
    found = processes.processes(fleet.run_id())
    titles = " ".join(process.cmdline()[0] for process in found)
    for title in ("raylet", "gcs_server", "ray::ServeReplica", "VLLM::EngineCore", "redis-server"):
        assert title in titles
    assert "VLLM::Worker" not in titles  # each would import vLLM once more
    known = {process.pid for process in found}
    offspring = {child.pid for process in found for child in process.children(recursive=True)}
    assert offspring <= known


def test_nothing_of_ray_or_redis_listens_beyond_this_machine(fleet: Fleet) -> None:
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes.processes(fleet.run_id())
        # Ray Serve 2.60 binds a replica's own gRPC server to every address, without a switch.
        if not process.cmdline()[0].startswith("ray::ServeReplica")
        for connection in process.net_connections("tcp")
        if connection.status == "LISTEN"
    }
    assert addresses == {"127.0.0.1"}


def test_a_crash_leaves_nothing_that_blocks_the_next_up(fleet: Fleet) -> None:
    crashed, api_key = fleet.run_id(), fleet.home.keys().api_key
    raylet = next(p for p in processes.processes(crashed) if p.name() == "raylet")
    raylet.kill()
    raylet.wait(10)
    assert fleet.antefix("status").returncode == ExitCode.NOT_RUNNING
    fleet.up_in_foreground()
    assert fleet.home.keys().api_key == api_key
    assert processes.processes(crashed) == []


def test_sigterm_to_a_foreground_fleet_lets_streams_finish(fleet: Fleet) -> None:
    assert fleet.foreground is not None
    state = fleet.home.state()
    assert state is not None
    body = {
        "model": state.model,
        "prompt": "Tell me a story.",
        "max_tokens": 100,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {
        "authorization": f"Bearer {fleet.home.keys().api_key}",
        "content-type": "application/json",
    }
    request = urllib.request.Request(
        f"{state.base_url}/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=120) as stream:
        first = stream.readline()
        fleet.foreground.send_signal(signal.SIGTERM)
        rest = stream.read()
    assert (first + rest).count(b'"text":') == 100
    assert rest.strip().endswith(b"data: [DONE]")
    assert fleet.foreground.wait(120) == ExitCode.OK
    assert processes.processes(state.run_id) == []
