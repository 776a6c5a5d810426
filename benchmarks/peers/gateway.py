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

from benchmarks.harness.fleets import lone_gateway
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway_parts import Secrets

# The time that the benchmark waits for it.
READY_S = 240.0


async def serve(asked: dict[str, Any], said: Any) -> None:
    fleet = Fleet.model_validate(asked["fleet"])
    secrets = Secrets(asked["api_keys"], asked["secret"], asked["redis_url"])
    async with lone_gateway.serving(fleet, secrets, asked["engines"], READY_S):
        print("true", file=said, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            pass


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
