"""A real replica without Ray.

    python -m benchmarks.peers.engine

Takes what to serve as a line of JSON on stdin. When it serves it says where vLLM's own application
answers, which resets its cache; it ends when stdin does. What it publishes, counts and probes is
what ships. Only the part of Ray Serve that counts running requests is replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

import uvloop

from cli.local.ports import LOOPBACK
from deployments.engine import replica
from deployments.engine.replica import EngineReplica
from deployments.engine.serve_places import ServePlaces
from deployments.fleet.fleet import Fleet
from deployments.process.http_server import HttpServer


class _ServeReplica:
    """In the place of Ray Serve's `Replica`: counts."""

    _shutting_down = False

    def __init__(self) -> None:
        self._event_loop = asyncio.get_running_loop()
        self._taken: set[str] = set()

    def get_num_ongoing_requests(self) -> int:
        return len(self._taken)

    async def reserve_slot(self, metadata: object, token: str) -> None:
        self._taken.add(token)

    def release_slot(self, token: str) -> None:
        self._taken.discard(token)


class LoneReplica(EngineReplica):
    """Ends when told to; Python cannot await the `__del__` that Ray Serve awaits."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


def _take_rays_place(replica_id: str) -> None:
    """In this process's module of replicas, which is to be the only one."""
    context = SimpleNamespace(replica_id=SimpleNamespace(unique_id=replica_id))
    places: Any = SimpleNamespace(here=lambda: ServePlaces(_ServeReplica()))
    ray: Any = SimpleNamespace(
        util=SimpleNamespace(get_node_ip_address=lambda: LOOPBACK),
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: ""),
    )
    serve: Any = SimpleNamespace(get_replica_context=lambda: context)
    drain: Any = SimpleNamespace(follow=lambda *arguments: asyncio.Event().wait())
    vars(replica).update(ServePlaces=places, ray=ray, serve=serve, node_drain=drain)


async def serve(asked: dict[str, Any], said: Any) -> None:
    fleet = Fleet.model_validate(asked["fleet"])
    ((name, pool),) = fleet.pools.items()
    _take_rays_place(asked["replica_id"])
    here = object.__new__(LoneReplica)
    await here.__init__(  # type: ignore[misc]
        fleet.board_of(name), pool, asked["secret"], asked["redis_url"], fleet.metrics
    )
    plain = HttpServer(here._engine.app)
    told = {
        "url": await plain.start(LOOPBACK),
        "block_size": here._engine.block_size,
        "kv_tokens": here._engine.kv_capacity_tokens,
    }
    print(json.dumps(told), file=said, flush=True)
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            pass
    finally:
        await plain.drain()
        await EngineReplica.__del__(here)


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
