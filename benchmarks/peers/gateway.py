"""A real gateway without Ray, in front of the benchmark's engines.

    python -m benchmarks.peers.gateway

Takes its fleet as a line of JSON on stdin, says `true` once it knows all engines, and ends when
stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import uvloop

from benchmarks.observability.gateway import LoneGateway, NoSlots
from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway import Gateway
from deployments.gateway.parts import Secrets
from deployments.gateway.pool.pool import GatewayPool


async def serve(asked: dict[str, Any], said: Any) -> None:
    fleet = Fleet.model_validate(asked["fleet"])
    here = object.__new__(LoneGateway)
    secrets = Secrets(asked["api_keys"], asked["secret"], asked["redis_url"])
    no_slots: Any = lambda pool: NoSlots()  # noqa: E731
    await here.__init__(fleet, secrets, no_slots)  # type: ignore[misc]
    await here.reconfigure(settings_of(fleet.model_dump(mode="json")))
    try:
        pool = next(iter(here.parts.pools.by_name.values()))
        while not _knows(pool, asked["engines"]):  # noqa: ASYNC110  # nothing tells when
            await asyncio.sleep(0.05)
        print("true", file=said, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            pass
    finally:
        await Gateway.__del__(here)


def _knows(pool: GatewayPool, engines: int) -> bool:
    loads = pool.scheduler.board.loads().values()
    known = sum(load.synced for load in loads) == engines
    return known and pool.reader.renderer.prompt_tokens is not None


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
