"""A fleet on Ray Serve whose engines compute nothing (`stand/played_engine.py`).

They answer at once, so only the gateway's cost is left. It passes on each token by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import psutil
import ray
from ray import serve

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.fleets.played_engine import EnginesSettings, PlayedEngine, facts_of
from cli.gateway.stream_client import Endpoint
from cli.local.ports import free_ports
from cli.local.redis_server import RedisServer
from deployments import app
from deployments.engine.replica import EngineReplica
from deployments.engine.serving.serve_places import ServePlaces
from deployments.fleet.applications import application_of
from deployments.fleet.fleet import Fleet, MetricsSettings
from deployments.fleet.pool import Pool
from deployments.gateway.gateway_parts import Secrets
from deployments.models.model import embedded_model
from deployments.wire.engine_pass import EnginePasses

MODEL, POOL = "small", "main"
ENGINES = 2
PROMPT_TOKENS, TOKENS, STEP_S = 500, 64, 0.02


class PlayedReplica(EngineReplica):
    """A replica with a played engine."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, board: str, pool: Pool, secret: str, redis_url: str, metrics: MetricsSettings
    ) -> None:
        folder = Path(pool.env["PLAYED_MODEL"])
        settings = EnginesSettings(
            redis_url, secret, board, pool.model, folder, PROMPT_TOKENS, TOKENS, STEP_S
        )
        replica_id = serve.get_replica_context().replica_id.unique_id
        played = PlayedEngine(settings, facts_of(folder), replica_id, ServePlaces.here())
        url = await played.start()
        self.parts = SimpleNamespace(tickets=played.tickets, url=url)  # type: ignore[assignment]
        self._steps = asyncio.create_task(played.run())

    async def check_health(self) -> None:
        pass

    async def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # Serve calls this on a failed __init__ too
            self._steps.cancel()


@dataclass(frozen=True)
class PlayedFleet:
    """`process` is the gateway's, `redis` its Redis's; `engine` is one engine's own server.
    `empty` is a replica of Ray Serve that does nothing. `other` is the gateway, with another
    tenant's key."""

    gateway: Endpoint
    other: Endpoint
    engine: Endpoint
    process: psutil.Process
    redis: psutil.Process
    empty: psutil.Process


class Nothing:
    async def pid(self) -> int:
        return os.getpid()


@contextmanager
def playing() -> Iterator[PlayedFleet]:
    """Start it in a separate Ray, and stop it at the end."""
    model = embedded_model(lambda fraction, step: None)
    with (
        tempfile.TemporaryDirectory(prefix="afx-bench-", ignore_cleanup_errors=True) as name,
        own_redis.running(Path(name)) as redis,
    ):
        try:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                object_store_memory=200_000_000,
                namespace="serve",
                log_to_driver=False,
                _temp_dir=name,
            )
            yield _deployed(model, redis)
        finally:
            ray.shutdown()


def _deployed(model: Path, redis: RedisServer) -> PlayedFleet:
    (port, metrics_port), secret = free_ports(2), secrets.token_hex(16)
    keys = {secrets.token_hex(8): tenant for tenant in ("bench", "other")}
    classes = {name: {"ttft_s": 600, "tpot_s": 60} for name in ("interactive", "batch")}
    pool = {
        "model": "bench",
        "served_model_name": MODEL,
        "replicas": ENGINES,
        "resources": {"cpus": 0.0},
        "env": {"PLAYED_MODEL": str(model)},
        "slo": classes,
    }
    fleet = Fleet.model_validate(
        {
            "name": "bench",
            "gateway": {"port": port, "cpus": 0.0},
            "metrics": {"port": metrics_port},
            "pools": {POOL: pool},
        }
    )
    serve.start(proxy_location="Disabled")
    with patch.object(app, "EngineReplica", PlayedReplica):
        built = app.applications(fleet, Secrets(keys, secret, redis.url))
    options = {"num_cpus": 0, "runtime_env": {"env_vars": app.GATEWAY_ENVIRONMENT}}
    built["nothing"] = serve.deployment(ray_actor_options=options)(Nothing).bind()
    serve.run_many(
        [serve.RunTarget(of, name=name, route_prefix=None) for name, of in built.items()]
    )
    url, empty = asyncio.run(_engine_url()), asyncio.run(_pid_of_nothing())
    gateway, other = (
        Endpoint("gateway", f"http://127.0.0.1:{port}", {"authorization": f"Bearer {key}"})
        for key in keys
    )
    engine = Endpoint("direct", url, EnginePasses(secret).headers(url))
    return PlayedFleet(gateway, other, engine, _listening(port), psutil.Process(redis.pid), empty)


async def _engine_url() -> str:
    handle: Any = serve.get_deployment_handle(POOL, application_of(POOL))
    async with handle.hold.choose_replica(()) as selection:
        return str(selection.replica_metadata["url"])


async def _pid_of_nothing() -> psutil.Process:
    handle: Any = serve.get_app_handle("nothing")
    return psutil.Process(await handle.pid.remote())


def _listening(port: int) -> psutil.Process:
    """The process of Ray that listens there. Raises LookupError."""
    for process in psutil.Process().children(recursive=True):
        for of in process.net_connections("tcp"):
            if of.status == psutil.CONN_LISTEN and of.laddr.port == port:
                return process
    raise LookupError(f"no process listens on port {port}")
