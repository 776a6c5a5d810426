"""One real fleet for most tests here: Ray Serve, two gateways, three vLLM engines, Redis."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, OpenAI

from cli.local.home import Home
from deployments.wire.engine_pass import EnginePasses
from tests.ports import free_ports
from tests.router.redis_process import running

FLEET_FILE = Path(__file__).with_name("fleet.yaml")
START_SECONDS = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [n for n, item in enumerate(items) if item.path.parent == FLEET_FILE.parent]
    if here:
        part = slice(here[0], here[-1] + 1)
        items[part] = sorted(items[part], key=_stops_the_fleet)


def _stops_the_fleet(item: pytest.Item) -> bool:
    return item.get_closest_marker("stops_the_fleet") is not None


class RedisUnderTest:
    """The fleet's Redis, always on the same port; each start is an empty one."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._running = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        server = running(self._folder, self.port, f"port {self.port}\n")
        self._process = self._running.enter_context(server).process

    def kill(self) -> None:
        self._running.close()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@dataclass(frozen=True)
class RunningFleet:
    """`model` has a few layers and says nothing that means anything; `other_model` is whole."""

    home: Home
    redis: RedisUnderTest
    file: Path
    root: str = ""
    api_key: str = ""
    model: str = "smollm2-135m-instruct"
    other_model: str = "smollm2-135m-other"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"}

    def engine_headers(self, url: str) -> dict[str, str]:
        """What opens the HTTP server of the replica at this address."""
        return EnginePasses(self.home.keys().engine_secret).headers(url)

    def antefix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cli.main", *arguments],
            env={
                **os.environ,
                "ANTEFIX_HOME": str(self.home.folder),
                "ANTEFIX_TEST_REDIS_URL": self.redis.url,
            },
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )

    @property
    def adapters(self) -> Path:
        """Where the pool `other` takes adapters from."""
        return self.home.folder / "adapters"

    def status(self) -> dict[str, Any]:
        done = self.antefix("status", "-o", "json")
        assert done.stdout, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def replicas(self, pool: str = "engine") -> list[dict[str, Any]]:
        replicas: list[dict[str, Any]] = self.status()["pools"][pool]["replicas"]
        return replicas


@pytest.fixture(scope="session")
def fleet(small_model: Path) -> Iterator[RunningFleet]:
    folder = Path(tempfile.mkdtemp(prefix="afx"))
    redis = RedisUnderTest(folder / "redis")
    fleet = RunningFleet(Home(folder), redis, folder / "fleet.yaml")
    file = FLEET_FILE.read_text().replace("SMALL", str(small_model))
    fleet.file.write_text(file.replace("ADAPTERS", str(fleet.adapters)))
    try:
        redis.start()
        up = fleet.antefix("up", str(fleet.file), "--port", "0", "-o", "json")
        assert up.returncode == 0, up.stderr
        started = json.loads(up.stdout)
        root = started["base_url"].removesuffix("/v1")
        yield replace(fleet, root=root, api_key=started["api_key"])
    finally:
        fleet.antefix("down", "--now")
        redis.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def openai(fleet: RunningFleet) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{fleet.root}/v1", api_key=fleet.api_key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_openai(fleet: RunningFleet) -> AsyncIterator[AsyncOpenAI]:
    base_url = f"{fleet.root}/v1"
    async with AsyncOpenAI(base_url=base_url, api_key=fleet.api_key, max_retries=0) as client:
        yield client


@pytest.fixture
async def http(fleet: RunningFleet) -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(fleet.root, headers=fleet.headers, timeout=timeout) as session:
        yield session
