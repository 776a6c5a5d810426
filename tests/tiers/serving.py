"""A real gateway and real replicas with tiers, as processes."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.fleets.launched import Launched
from cli.local.ports import LOOPBACK, free_ports, held
from deployments.app import ENGINE_ENVIRONMENT
from deployments.fleet.fleet import Fleet
from tests.tiers.host_tier import BLOCK, ENGINE_ARGS, greedy

START_S, KEY = 300.0, "key"
EXPORTED_S, LOOK_S = 15.0, 0.5
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
        self._running: dict[str, Launched] = {}
        self._ports = fleet.gateway.port, fleet.metrics.port
        self._held: list[socket.socket] = []

    def start(self) -> None:
        # engines open many ports before the gateway listens, and could get one of these by chance
        self._held = [held(LOOPBACK, port) for port in self._ports]
        for number, pool in enumerate(self._pools):
            self.start_replica(f"r{number}", pool)
        more = {"engines": len(self._pools), "api_keys": {KEY: "tests"}}
        self._launch("gateway", "benchmarks.harness.fleets.lone_gateway", **more)

    def start_replica(self, name: str, pool: str | None = None) -> None:
        module = "benchmarks.harness.fleets.lone_replica"
        self._launch(name, module, replica_id=name, pool=pool)

    def _launch(self, name: str, module: str, **more: Any) -> None:
        environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(self._folder / "metrics")}
        log = self._folder / f"{name}.log"
        command = [sys.executable, "-m", module]
        process = Launched(command, log, environment, {**self._asked, **more})
        self._running[name] = process
        process.said(START_S)

    def stop(self) -> None:
        while self._running:
            self._running.popitem()[1].stop()
        while self._held:
            self._held.pop().close()

    def stop_replica(self, name: str) -> None:
        """The replica leaves, as if Ray Serve had stopped it."""
        self._running.pop(name).stop()

    def kill_replica(self, name: str) -> None:
        """The replica's processes end at once."""
        killed = self._running.pop(name)
        replica = psutil.Process(killed.pid)
        for process in (*replica.children(recursive=True), replica):
            process.kill()
        killed.stop()

    def kill(self) -> None:
        """The first replica's processes end at once, and then the others."""
        self.kill_replica("r0")
        self.stop()


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


async def counted(fleet: Fleet, name: str, **labels: str) -> float:
    """The sum over the metric's series with these labels."""
    families = text_string_to_metric_families(await metrics_of(fleet))
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def becomes_true(wanted: Callable[[], Awaitable[bool]]) -> bool:
    """Whether it is true within the time that metrics take to be exported."""
    for _ in range(round(EXPORTED_S / LOOK_S)):
        if await wanted():
            return True
        await asyncio.sleep(LOOK_S)
    return False
