"""A real gateway and real replicas with tiers, as processes."""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from benchmarks.harness.fleets.launched import Launched
from cli.local.ports import LOOPBACK, free_ports
from deployments.app import ENGINE_ENVIRONMENT
from deployments.fleet.fleet import Fleet
from tests.tiers.host_tier import BLOCK, ENGINE_ARGS, greedy

START_S, KEY = 300.0, "key"
ENVIRONMENT = {
    **ENGINE_ENVIRONMENT,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
}


def fleet_with(
    model: Path, kv_tiers: dict[str, Any], prefill: dict[str, Any] | None = None
) -> Fleet:
    """A fleet with one pool, or with `prefill` another one that computes prompts for it."""
    metrics_port, port = free_ports(2)
    pool = {
        "model": str(model),
        "served_model_name": "model",
        "segment_tokens": BLOCK,
        "engine_args": ENGINE_ARGS,
        "kv_tiers": kv_tiers,
    }
    pools = {"engine": pool}
    if prefill is not None:
        pools["prompts"] = {**pool, "served_model_name": "prompts"}
        pools["engine"] = {**pool, "prefill": {"pool": "prompts", **prefill}}
    return Fleet.model_validate(
        {
            "name": "tiers",
            "metrics": {"port": metrics_port},
            "redis": {"lookup_budget_ms": 1000},
            "gateway": {"port": port},
            "pools": pools,
        }
    )


class Serving:
    """`replicas` of each pool and a gateway, as processes. They begin and end several times."""

    def __init__(self, fleet: Fleet, redis_url: str, folder: Path, replicas: int = 1) -> None:
        self._folder = folder
        # the pool of each replica
        self._pools = [name for name in fleet.pools for _ in range(replicas)]
        self._asked: dict[str, Any] = {
            "fleet": fleet.model_dump(mode="json", exclude_unset=True),
            "secret": secrets.token_hex(16),
            "redis_url": redis_url,
        }
        self._running: list[Launched] = []

    def start(self) -> None:
        for number, pool in enumerate(self._pools):
            replica = {"replica_id": f"r{number}", "pool": pool}
            self._launch("benchmarks.harness.fleets.lone_replica", **replica)
        more = {"engines": len(self._pools), "api_keys": {KEY: "tests"}}
        self._launch("benchmarks.harness.fleets.lone_gateway", **more)

    def _launch(self, module: str, **more: Any) -> None:
        environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(self._folder / "metrics")}
        log = self._folder / f"{module}.{len(self._running)}.log"
        command = [sys.executable, "-m", module]
        process = Launched(command, log, environment, {**self._asked, **more})
        self._running.append(process)
        process.said(START_S)

    def stop(self) -> None:
        while self._running:
            self._running.pop().stop()

    def kill(self) -> None:
        """The first replica's processes end at once, and then the others."""
        self.kill_replica(0)
        self.stop()

    def kill_replica(self, number: int) -> None:
        """A replica's processes end at once."""
        replica = psutil.Process(self._running[number].pid)
        for process in (*replica.children(recursive=True), replica):
            process.kill()


@asynccontextmanager
async def client_of(fleet: Fleet) -> AsyncIterator[aiohttp.ClientSession]:
    url, headers = f"http://{LOOPBACK}:{fleet.gateway.port}", {"authorization": f"Bearer {KEY}"}
    async with aiohttp.ClientSession(url, headers=headers) as http:
        yield http


class Asked(NamedTuple):
    """An answer, and the cached tokens of its prompt as the gateway predicted them and as the
    engine counted them."""

    token_ids: list[int]
    predicted: int
    cached: int


async def ask(
    http: aiohttp.ClientSession, prompt: list[int], tokens: int = 8, model: str = "model"
) -> Asked:
    fields = greedy(prompt, tokens) | {"model": model}
    async with http.post("/v1/completions", json=fields) as answer:
        said = await answer.json()
        assert answer.status == 200, said
    names = ("x-antefix-cached-tokens-predicted", "x-antefix-cached-tokens")
    return Asked(said["choices"][0]["token_ids"], *(int(answer.headers[name]) for name in names))


async def metrics_of(fleet: Fleet) -> str:
    """The metrics of the gateway and of the engines."""
    url = f"http://{LOOPBACK}:{fleet.metrics.port}/metrics"
    async with aiohttp.ClientSession() as http, http.get(url) as answer:
        return await answer.text()
