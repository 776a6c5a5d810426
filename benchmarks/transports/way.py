"""One way from a gateway to an engine, in a Ray of its own (see `benchmarks.transports.run`)."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Message

from benchmarks.transports.run import MARK
from cli import stream_client
from cli.local import redis_server
from cli.stream_client import Endpoint
from deployments.app import applications
from deployments.engine.replica import EngineReplica
from deployments.fleet.applications import application_of
from deployments.fleet.fleet_file import load_fleet
from deployments.gateway.gateway import Secrets
from deployments.wire.engine_pass import EnginePasses

KEY, SECRET, PORT = "key", "secret", 8199
ROUNDS, BURSTS, CONCURRENCY, TOKENS = 50, 2, 32, 8


class HandleEngine(EngineReplica):
    """An engine whose tokens leave through a Ray Serve handle."""

    async def stream(self, body: bytes) -> AsyncIterator[bytes]:
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue()

        requests: asyncio.Queue[Message] = asyncio.Queue()
        requests.put_nowait({"type": "http.request", "body": body, "more_body": False})

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                await chunks.put(message["body"])
                if not message.get("more_body"):
                    await chunks.put(None)

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "headers": headers,
                 "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"",
                 "scheme": "http", "root_path": "", "server": None, "client": None}  # fmt: skip
        running = asyncio.ensure_future(self._engine.app(scope, requests.get, send))
        while (chunk := await chunks.get()) is not None:
            yield chunk
        await running


class HandleGateway:
    """The plainest gateway: Ray Serve's ingress, a streaming handle."""

    def __init__(self, engine: DeploymentHandle[Any]) -> None:
        self._stream: Any = engine.options(stream=True).stream

    async def __call__(self, request: Request) -> StreamingResponse:
        return StreamingResponse(
            self._stream.remote(await request.body()), media_type="text/event-stream"
        )


def deploy(way: str, redis_url: str) -> str:
    """Start the way; returns the gateway's URL."""
    fleet = load_fleet(str(Path(__file__).parents[1] / "overhead" / "fleet.yaml"))
    pool = fleet.pools["engine"]
    if way == "straight":
        gateway = fleet.gateway.model_copy(update={"port": PORT})
        serve.start(proxy_location="Disabled")
        secrets = Secrets(api_keys={KEY: "bench"}, engine_secret=SECRET, redis_url=redis_url)
        built = applications(fleet.model_copy(update={"gateway": gateway}), secrets)
        serve.run_many(
            [serve.RunTarget(of, name=name, route_prefix=None) for name, of in built.items()]
        )
    else:
        serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        engine: Any = serve.deployment(
            name="engine",
            max_ongoing_requests=256,
            ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": dict(pool.env)}},
        )(HandleEngine)
        plain: Any = serve.deployment(name="gateway", max_ongoing_requests=1000)(HandleGateway)
        application = plain.bind(engine.bind("engine", pool, SECRET, redis_url, fleet.metrics))
        serve.run(application, name=application_of("engine"))
    return f"http://127.0.0.1:{PORT}"


def cpu_outside_vllm() -> float:
    """CPU seconds so far of this process's descendants, but vLLM's own."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        if not process.name().startswith("VLLM"):
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


async def measure(gateway_url: str) -> dict[str, float]:
    handle: Any = serve.get_deployment_handle("engine", application_of("engine"))
    async with handle.hold.choose_replica(()) as selection:
        engine_url = selection.replica_metadata["url"]
    gateway = Endpoint("gateway", gateway_url, {"authorization": f"Bearer {KEY}"})
    direct = Endpoint("direct", engine_url, EnginePasses(SECRET).headers(engine_url))
    model, prompt = "smollm2-135m-instruct", "The quick brown fox jumps over the lazy dog."
    cpu_per_token: dict[str, list[float]] = {"gateway": [], "direct": []}
    async with stream_client.session() as http:

        async def one_ttft(endpoint: Endpoint) -> float:
            return await stream_client.ttft(http, endpoint, model, prompt, 2)

        async def one_burst(endpoint: Endpoint) -> float:
            prompts = [f"{i} {prompt}" for i in range(CONCURRENCY)]
            before, began = cpu_outside_vllm(), time.monotonic()
            rate = await stream_client.throughput(http, endpoint, model, prompts, TOKENS)
            used = cpu_outside_vllm() - before - idle * (time.monotonic() - began)
            cpu_per_token[endpoint.name].append(1000 * used / (CONCURRENCY * TOKENS))
            return rate

        before = cpu_outside_vllm()
        await asyncio.sleep(5)
        idle = (cpu_outside_vllm() - before) / 5
        ttfts = await stream_client.interleaved([gateway, direct], one_ttft, ROUNDS, warmup=5)
        bursts = await stream_client.interleaved([gateway, direct], one_burst, BURSTS, warmup=1)
    added = statistics.median(a - b for a, b in zip(ttfts["gateway"], ttfts["direct"], strict=True))
    ratio = statistics.median(
        a / b for a, b in zip(bursts["gateway"], bursts["direct"], strict=True)
    )
    return {
        "added_ttft_ms_p50": round(1000 * added, 2),
        "throughput_ratio": round(ratio, 3),
        "cpu_ms_per_token": round(statistics.median(cpu_per_token["gateway"]), 3),
        "cpu_ms_per_token_direct": round(statistics.median(cpu_per_token["direct"]), 3),
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="afx-way-", ignore_cleanup_errors=True) as folder:
        redis = redis_server.start(Path(folder) / "redis", Path(folder) / "redis.log", os.environ)
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            object_store_memory=200_000_000,
            namespace="serve",
            log_to_driver=False,
            _temp_dir=folder,
        )
        try:
            print(MARK + json.dumps(asyncio.run(measure(deploy(sys.argv[1], redis.url)))))
        finally:
            redis_server.stop(redis)
            serve.shutdown()  # type: ignore[no-untyped-call]
            ray.shutdown()


if __name__ == "__main__":
    main()
