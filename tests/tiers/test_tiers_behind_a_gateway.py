"""A real gateway and real replicas with a disk tier, one after the other with the same folder."""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
import pytest

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.launched import Launched
from cli.local.ports import LOOPBACK, free_ports
from deployments.app import ENGINE_ENVIRONMENT
from deployments.fleet.fleet import Fleet
from tests.prometheus import asked_for, needs_tiers, queries
from tests.tiers.disk_tier import HOST_BYTES, OWN
from tests.tiers.host_tier import BLOCK, ENGINE_ARGS, PROMPT, document, greedy

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

START_S, EXPORTED_S, KEY = 300.0, 30.0, "key"
# what dashboards and alerts ask about tiers, which other fleets of tests do not have
METRICS = {name for query in queries().values() for name in asked_for(query) if needs_tiers(name)}
# The tokens of the prompt's whole blocks.
WHOLE = PROMPT // BLOCK * BLOCK
ENVIRONMENT = {
    **ENGINE_ENVIRONMENT,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
}


@pytest.fixture(scope="module")
def fleet(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    metrics_port, port = free_ports(2)
    disk = {"folder": str(tmp_path_factory.mktemp("tier") / "folder"), "max_bytes": "1GiB"}
    pool = {
        "model": str(small_model),
        "served_model_name": "model",
        "segment_tokens": BLOCK,
        "engine_args": ENGINE_ARGS,
        "kv_tiers": {"host_bytes": HOST_BYTES, "disk": disk},
    }
    return Fleet.model_validate(
        {
            "name": "tiers",
            "metrics": {"port": metrics_port},
            "redis": {"lookup_budget_ms": 1000},
            "gateway": {"port": port},
            "pools": {"engine": pool},
        }
    )


class Serving:
    """A replica and a gateway, as processes. They begin and end several times."""

    def __init__(self, fleet: Fleet, redis_url: str, folder: Path) -> None:
        self._folder = folder
        self._asked: dict[str, Any] = {
            "fleet": fleet.model_dump(mode="json", exclude_unset=True),
            "secret": secrets.token_hex(16),
            "redis_url": redis_url,
        }
        self._running: list[Launched] = []

    def start(self) -> None:
        self._launch("benchmarks.harness.fleets.lone_replica", replica_id="r0")
        self._launch("benchmarks.harness.fleets.lone_gateway", engines=1, api_keys={KEY: "tests"})

    def _launch(self, module: str, **more: Any) -> None:
        environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(self._folder / "metrics")}
        command, log = [sys.executable, "-m", module], self._folder / f"{module}.log"
        process = Launched(command, log, environment, {**self._asked, **more})
        self._running.append(process)
        process.said(START_S)

    def stop(self) -> None:
        while self._running:
            self._running.pop().stop()

    def kill(self) -> None:
        """The replica's processes end at once, and then the gateway."""
        replica = psutil.Process(self._running[0].pid)
        for process in (*replica.children(recursive=True), replica):
            process.kill()
        self.stop()


@pytest.fixture
def serving(fleet: Fleet, tmp_path: Path) -> Iterator[Serving]:
    with own_redis.running(tmp_path) as redis:
        serving = Serving(fleet, redis.url, tmp_path)
        yield serving
        serving.stop()


@pytest.fixture
async def http(fleet: Fleet) -> AsyncIterator[aiohttp.ClientSession]:
    url, headers = f"http://{LOOPBACK}:{fleet.gateway.port}", {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(url, headers=headers) as http:
        yield http


class Asked(NamedTuple):
    """An answer, and the cached tokens of its prompt as the gateway predicted them and as the
    engine counted them."""

    token_ids: list[int]
    predicted: int
    cached: int


async def ask(http: aiohttp.ClientSession, prompt: list[int]) -> Asked:
    async with http.post("/v1/completions", json=greedy(prompt, 8)) as answer:
        said = await answer.json()
        assert answer.status == 200, said
    names = ("x-antefix-cached-tokens-predicted", "x-antefix-cached-tokens")
    return Asked(said["choices"][0]["token_ids"], *(int(answer.headers[name]) for name in names))


async def until_exported(port: int, names: set[str]) -> None:
    """Wait for metrics of the gateway and of the engine."""
    async with asyncio.timeout(EXPORTED_S), aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"http://{LOOPBACK}:{port}/metrics") as answer:
                exported = await answer.text()
            if all(f"\n{name}{{" in exported for name in names):
                return
            await asyncio.sleep(0.5)


async def test_a_replica_serves_from_the_files_of_those_before_it(
    serving: Serving, http: aiohttp.ClientSession, fleet: Fleet
) -> None:
    await asyncio.to_thread(serving.start)
    computed = await ask(http, OWN)
    assert computed[1:] == (0, 0)
    for number in range(1, 10):
        await ask(http, document(number))
    read = Asked(computed.token_ids, WHOLE, WHOLE)
    assert await ask(http, OWN) == read
    await until_exported(fleet.metrics.port, METRICS)
    for end in (serving.stop, serving.kill):
        await asyncio.to_thread(end)
        await asyncio.to_thread(serving.start)
        assert await ask(http, OWN) == read
