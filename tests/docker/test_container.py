"""The CPU image in a container, by the commands of docs/laptop.md and by compose.yaml.

`make test` has no image. With docker, and after `make image-cpu`:

    python -m pytest -m kubernetes_long tests/docker
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import OpenAI

from tests.missing import missing
from tests.shell_blocks import shell_blocks

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
COMPOSE_FILE = ROOT / "compose.yaml"
(RUN,) = (
    block.text for block in shell_blocks(ROOT / "docs" / "laptop.md") if "docker run" in block.text
)
(IMAGE,) = re.findall(r"antefix/antefix-cpu:\S+", RUN)
URL = "http://127.0.0.1:8000/v1"
STARTS_S, HEALTHY_S, ENDS_S = 400.0, 60.0, 100.0


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    if shutil.which("docker") is None:
        missing("docker is not installed")
    if fails("docker", "image", "inspect", IMAGE):
        missing(f"docker has no image {IMAGE} (make image-cpu)")


@pytest.fixture
def compose() -> Iterator[list[str]]:
    """Its command. Containers and volumes are removed in the end."""
    program = ["docker-compose"] if fails("docker", "compose", "version") else ["docker", "compose"]
    if shutil.which(program[0]) is None:
        missing("docker compose is not installed")
    command = [*program, "--file", str(COMPOSE_FILE), "--project-name", "antefix-test"]
    yield command
    subprocess.run([*command, "down", "--volumes"], check=True)


def fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


@contextmanager
def foreground(command: list[str], log: Path) -> Iterator[str]:
    """The API key, once the fleet has printed it. Ends the command as a terminal's Ctrl-C does."""
    with log.open("w") as written:
        process = subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT)
    try:
        yield api_key(process, log)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(ENDS_S)


def api_key(process: subprocess.Popen[bytes], log: Path) -> str:
    until = time.monotonic() + STARTS_S
    while time.monotonic() < until and process.poll() is None:
        text = log.read_text()
        if "Next: antefix chat" in text:
            return str(re.findall(r"API key +(\S+)", text)[0])
        time.sleep(1)
    raise AssertionError(log.read_text())


def health() -> str:
    listed = ["docker", "ps", "--quiet", "--filter", f"ancestor={IMAGE}"]
    (container,) = subprocess.check_output(listed, text=True).split()
    shown = ["docker", "inspect", "--format", "{{.State.Health.Status}}", container]
    return subprocess.check_output(shown, text=True).strip()


def assert_answers(key: str) -> None:
    with OpenAI(base_url=URL, api_key=key) as client:
        model = next(iter(client.models.list())).id
        said = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8)
    assert said.choices[0].text


def test_the_image_serves_on_a_published_port(tmp_path: Path) -> None:
    with foreground(["bash", "-c", f"exec {RUN}"], tmp_path / "log") as key:
        assert_answers(key)
        until = time.monotonic() + HEALTHY_S
        while health() != "healthy" and time.monotonic() < until:
            time.sleep(1)
        assert health() == "healthy"
    assert "Draining: ready" in (tmp_path / "log").read_text()


def test_compose_keeps_the_api_key(compose: list[str], tmp_path: Path) -> None:
    keys = []
    for n in range(2):
        with foreground([*compose, "up"], tmp_path / f"log{n}") as key:
            assert_answers(key)
            keys.append(key)
        subprocess.run([*compose, "down"], check=True)
    assert keys[0] == keys[1]
