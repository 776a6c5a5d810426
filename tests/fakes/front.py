"""A real gateway on a port of its own, in front of fake engines, without Ray and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from deployments.fleet import Fleet
from deployments.gateway import Gateway, Secrets
from deployments.local.ports import free_ports
from tests.fakes.engine import MODEL, SECRET, FakeEngine
from tests.fakes.serve_handle import FakeHandle

KEY = "sk-test"
NO_REDIS = "redis://127.0.0.1:1/0"


class _Gateway(Gateway):
    """Ends when told to; Python cannot await the `__del__` that Ray Serve awaits."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


class Front:
    """`url` is the gateway's; `http` a client without a key; `handle` what stands for Serve."""

    def __init__(self, gateway: Gateway, url: str, handle: FakeHandle) -> None:
        self.gateway = gateway
        self.url = url
        self.handle = handle
        self.headers = {"authorization": f"Bearer {KEY}"}
        self.http = aiohttp.ClientSession()

    def sees(self, *engines: FakeEngine) -> None:
        """Put the engines on the load board, the first with the shortest queue."""
        loads = {e.replica_id: e.load(1000 * i) for i, e in enumerate(engines)}
        self.gateway._pools["main"].board.update(loads)

    def post(
        self, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None, **body: Any
    ) -> Any:
        """A request for a chat, with the key."""
        fields = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], **body}
        return self.http.post(
            self.url + path, json=fields, headers={**self.headers, **(headers or {})}
        )

    def get(self, path: str) -> Any:
        return self.http.get(self.url + path, headers=self.headers)


@asynccontextmanager
async def gateway_before(*engines: FakeEngine, **limits: Any) -> AsyncIterator[Front]:
    """`limits` are settings of the fleet file's `gateway`."""
    (port,) = free_ports(1)
    fleet = Fleet.model_validate(
        {
            "name": "test",
            "gateway": {"port": port, **limits},
            "pools": {"main": {"model": "embedded", "served_model_name": MODEL}},
        }
    )
    secrets = Secrets(api_keys={KEY: "tenant"}, engine_secret=SECRET, redis_url=NO_REDIS)
    handle = FakeHandle(*engines)
    gateway = object.__new__(_Gateway)
    await asyncio.gather(*(engine.start() for engine in engines))
    await gateway.__init__(fleet, secrets, {"main": handle})  # type: ignore[misc]
    front = Front(gateway, f"http://127.0.0.1:{port}", handle)
    front.sees(*engines)
    try:
        yield front
    finally:
        await front.http.close()
        await asyncio.gather(*(engine.stop() for engine in engines), Gateway.__del__(gateway))
