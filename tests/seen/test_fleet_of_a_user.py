"""The commands on a real fleet, its crash, and the fleet that comes after it.

Its tests run in order, on the fleet that every query was put to: none has to be loaded for them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.common.exit_codes import ExitCode
from cli.local import processes
from tests.seen.conftest import MODEL, OTHER_MODEL, TRIED, Seen, antefix
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

FLEET = """\
name: test
pools:
  engine:
    model: embedded
    resources: {cpus: 0.5}
    env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: nobind}
    # those that vLLM was asked about for the fleet before
    engine_args:
      dtype: float32
      max_model_len: 1024
      max_num_seqs: 8
      max_num_batched_tokens: 512
      enforce_eager: true
"""


async def test_status_shows_that_a_lost_engine_was_replaced(seen: Seen) -> None:
    def replaced() -> bool:
        request = urllib.request.Request(f"{seen.root}/antefix/status", headers=seen.headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bool(json.load(answer)["pools"]["other"]["states"] == {"RUNNING": 1})

    def told() -> bool:
        done = antefix(seen.home.folder, "status", "-o", "json")
        states = json.loads(done.stdout)["pools"]["other"]["states"]
        return done.returncode == ExitCode.OK and states == {"RUNNING": 1}

    # the command takes a second of a core, which the new engine needs
    await until(replaced, within_s=120, every_s=0.5)
    await until(told, within_s=60)  # whichever gateway it asks


def test_up_again_finds_it_running(seen: Seen) -> None:
    done = antefix(seen.home.folder, "up", str(seen.fleet_file), "--port", "0")
    assert done.returncode == ExitCode.OK, done.stderr
    assert "already running" in done.stdout


def test_env_is_all_an_openai_client_needs(seen: Seen) -> None:
    models = "sorted(model.id for model in openai.OpenAI().models.list())"
    python = f"{sys.executable} -c 'import openai; print(*{models})'"
    done = subprocess.run(
        ["sh", "-c", f'eval "$({sys.executable} -m cli.main env)" && {python}'],
        env={**os.environ, "ANTEFIX_HOME": str(seen.home.folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split() == ["either", MODEL, OTHER_MODEL, TRIED], done.stderr


def test_logs_name_their_component(seen: Seen) -> None:
    done = antefix(seen.home.folder, "logs", "--component", "redis")
    assert "redis   | " in done.stdout


def test_the_last_lines_of_all_logs_are_no_more_than_asked_for(seen: Seen) -> None:
    shown = antefix(seen.home.folder, "logs", "--tail", "15").stdout
    assert len(shown.splitlines()) == 15
    assert "[state-dump]" not in shown


def test_every_process_carries_the_run_id(seen: Seen) -> None:
    found = processes.processes(seen.state().run_id)
    titles = " ".join(process.cmdline()[0] for process in found)
    for title in ("raylet", "gcs_server", "ray::ServeReplica", "VLLM::EngineCore", "redis-server"):
        assert title in titles
    assert "VLLM::Worker" not in titles  # each would import vLLM once more
    known = {process.pid for process in found}
    offspring = {child.pid for process in found for child in process.children(recursive=True)}
    assert offspring <= known


def test_nothing_but_gateways_listens_beyond_this_machine(seen: Seen) -> None:
    addresses = {
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes.processes(seen.state().run_id)
        # Ray Serve 2.60 binds a replica's own gRPC server to every address, without a switch.
        if not process.cmdline()[0].startswith("ray::ServeReplica")
        for connection in process.net_connections("tcp")
        if connection.status == "LISTEN"
    }
    assert addresses == {"127.0.0.1"}


def test_other_users_cannot_enter_what_ray_opens_to_all(seen: Seen) -> None:
    """`ray start` opens its folder to all users, after Antefix has made it."""
    folder = Path(seen.state().ray_temp_dir)
    assert folder.stat().st_mode & 0o007 == 0o007
    around = folder.parent.stat()
    assert (around.st_mode & 0o077, around.st_uid) == (0, os.getuid())


@pytest.fixture(scope="module")
def foreground(
    seen: Seen, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A fleet of one engine, in the place of the crashed one, and what `up` says."""
    folder = tmp_path_factory.mktemp("foreground")
    (folder / "fleet.yaml").write_text(FLEET)
    crashed = seen.state().run_id
    said = folder / "said"
    with said.open("wb") as out:
        up = subprocess.Popen(
            [
                *(sys.executable, "-m", "cli.main", "up", str(folder / "fleet.yaml")),
                *("--port", "0", "--foreground"),
            ],
            env={**os.environ, "ANTEFIX_HOME": str(seen.home.folder)},
            stdout=out,
        )
    try:
        deadline = time.monotonic() + 600
        while (state := seen.home.state()) is None or state.run_id == crashed or not state.ready:
            assert up.poll() is None, "up ended"
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield up, said
    finally:
        antefix(seen.home.folder, "down", "--now")
        up.wait(60)


def test_a_crash_leaves_nothing_that_blocks_the_next_up(
    seen: Seen, request: pytest.FixtureRequest
) -> None:
    crashed, api_key = seen.state().run_id, seen.home.keys().api_key
    raylet = next(p for p in processes.processes(crashed) if p.name() == "raylet")
    raylet.kill()
    raylet.wait(60)
    assert antefix(seen.home.folder, "status").returncode == ExitCode.NOT_RUNNING
    request.getfixturevalue("foreground")
    assert seen.home.keys().api_key == api_key
    assert processes.processes(crashed) == []


async def test_up_prints_an_answer_to_a_first_question(
    foreground: tuple[subprocess.Popen[bytes], Path], seen: Seen
) -> None:
    _, said = foreground
    await until(lambda: "Authorization: Bearer" in said.read_text(), within_s=60)
    assert "Tokyo" in said.read_text()
    assert f"Authorization: Bearer {seen.home.keys().api_key}" in said.read_text()


def test_sigterm_to_a_foreground_fleet_lets_streams_finish(
    foreground: tuple[subprocess.Popen[bytes], Path], seen: Seen
) -> None:
    up, _ = foreground
    state = seen.state()
    body = {
        "model": state.model,
        "prompt": "Tell me a story.",
        "max_tokens": 100,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {
        "authorization": f"Bearer {seen.home.keys().api_key}",
        "content-type": "application/json",
    }
    request = urllib.request.Request(
        f"{state.base_url}/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=120) as stream:
        first = stream.readline()
        up.send_signal(signal.SIGTERM)
        rest = stream.read()
    assert (first + rest).count(b'"text":') == 100
    assert rest.strip().endswith(b"data: [DONE]")
    assert up.wait(120) == ExitCode.OK
    assert processes.processes(state.run_id) == []
