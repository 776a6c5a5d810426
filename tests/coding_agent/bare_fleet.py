"""Real engines, real gateways and one Redis, each a process, without Ray.

Of Ray Serve only what counts running requests and starts replicas again is missing
(`benchmarks.harness.fleets.lone_replica`, `benchmarks.harness.fleets.lone_gateway`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.launched import Launched
from cli.local.ports import LOOPBACK
from deployments.app import ENGINE_ENVIRONMENT
from tests.ports import free_ports
from tests.warm_python import program as warm

START_S = 400.0
SECRET = "engine-secret"
MODEL = "agent"
ENVIRONMENT = {
    **ENGINE_ENVIRONMENT,
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class BareFleet:
    """`gateways`: their addresses. `engines`: by the replica's id."""

    gateways: tuple[str, ...]
    engines: Mapping[str, Launched]

    def kill(self, replica: str) -> None:
        """The engine's processes end at once, and nothing starts it again."""
        os.kill(self.engines[replica].pid, signal.SIGKILL)


@contextmanager
def running(
    python: str, pool: Mapping[str, Any], keys: Mapping[str, str], folder: Path
) -> Iterator[BareFleet]:
    """Two engines of the pool and four gateways. `python`: what runs the engines. `keys`: API key
    -> tenant."""
    metrics, *ports = free_ports(5)
    fleet = {
        "name": "agents",
        # the budget is for a machine whose cores are busy
        "redis": {"lookup_budget_ms": 1000},
        "metrics": {"port": metrics},
        "pools": {"engine": {"served_model_name": MODEL, **pool}},
    }
    with ExitStack() as stack:
        redis = stack.enter_context(own_redis.running(folder))
        common = {"secret": SECRET, "redis_url": redis.url}

        def launched(name: str, command: list[str], asked: Mapping[str, Any]) -> Launched:
            environment = {**ENVIRONMENT, "ANTEFIX_METRICS_FOLDER": str(folder / name)}
            process = Launched(command, folder / f"{name}.log", environment, {**common, **asked})
            stack.callback(process.stop)
            return process

        replica = [python, "-m", "benchmarks.harness.fleets.lone_replica"]
        engines = {
            id: launched(id, replica, {"fleet": fleet, "replica_id": id}) for id in ("r0", "r1")
        }
        gateway = [
            stack.enter_context(warm.running("benchmarks.harness.fleets.lone_gateway")),
            "-m",
            "benchmarks.harness.fleets.lone_gateway",
        ]
        gateways = []
        for number, port in enumerate(ports):
            limits = {"host": LOOPBACK, "port": port, "tenants": _operators(keys)}
            asked = {
                "fleet": {**fleet, "gateway": limits},
                "api_keys": dict(keys),
                "engines": len(engines),
            }
            gateways.append(launched(f"gateway-{number}", gateway, asked))
        for process in (*engines.values(), *gateways):
            process.said(START_S)
        yield BareFleet(tuple(f"http://{LOOPBACK}:{port}" for port in ports), engines)


def _operators(keys: Mapping[str, str]) -> dict[str, Any]:
    return {tenant: {"operator": True} for tenant in keys.values()}
