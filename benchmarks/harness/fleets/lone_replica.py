"""A real replica without Ray.

    python -m benchmarks.harness.fleets.lone_replica

Takes what to serve as a line of JSON on stdin, with the name of its `pool` if it is not the first
one. When it serves it says where vLLM's own application
answers, which resets its cache; it ends when stdin does. What it publishes, counts and probes is
what ships. Only the part of Ray Serve that counts running requests is replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import uvloop

from cli.local.ports import LOOPBACK
from deployments.engine.replica import EngineReplica, yield_to_gateways
from deployments.engine.replica_parts import Assignment, Surroundings
from deployments.engine.serving.serve_places import ServePlaces
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
    """Ends on request; Python cannot await the `__del__` that Ray Serve awaits."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


async def serve(asked: dict[str, Any], said: Any) -> None:
    fleet = Fleet.model_validate(asked["fleet"])
    name = asked.get("pool") or next(iter(fleet.pools))
    pool = fleet.pools[name]
    board, secret, redis_url = fleet.board_of(name), asked["secret"], asked["redis_url"]
    yield_to_gateways()
    replica = object.__new__(LoneReplica)
    await replica.begin(
        Surroundings(asked["replica_id"], "", LOOPBACK, ServePlaces(_ServeReplica())),
        Assignment(board, pool, secret, redis_url, fleet.metrics),
    )
    engine = replica.parts.engine
    plain = HttpServer(engine.app)
    told = {
        "url": await plain.start(LOOPBACK),
        "block_size": engine.block_size,
        "kv_tokens": engine.kv_capacity_tokens,
    }
    print(json.dumps(told), file=said, flush=True)
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            pass
    finally:
        await plain.drain()
        await EngineReplica.__del__(replica)


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
