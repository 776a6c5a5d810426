"""A real gateway without Ray, in a benchmark's own process, or in its own.

    python -m benchmarks.harness.fleets.lone_gateway

This takes its fleet as a line of JSON on stdin, says `true` once it knows all engines, and ends
when stdin does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from deployments.fleet.applications import settings_of
from deployments.fleet.fleet import Fleet
from deployments.gateway.gateway import Gateway
from deployments.gateway.gateway_parts import Secrets
from deployments.gateway.pool.gateway_pool import GatewayPool

# The time that a benchmark waits for it.
READY_S = 240.0


class NoSlots:
    """A pool's handle to Ray Serve, where no reservation is as quick as the engine.

    Every request goes to the best replica at once, as it does while there is room.
    """

    @property
    def hold(self) -> NoSlots:
        return self

    @asynccontextmanager
    async def choose_replica(self, ranked_ids: tuple[str, ...]) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


class LoneGateway(Gateway):
    """Ends on request; Python cannot await the `__del__` that Ray Serve awaits."""

    def __del__(self) -> None:  # type: ignore[override]
        pass


@asynccontextmanager
async def serving(
    fleet: Fleet, secrets: Secrets, engines: int, within_s: float
) -> AsyncIterator[LoneGateway]:
    """A gateway of the fleet that knows N engines of all pools; it has ended in the end. Raises
    TimeoutError when it does not know them `within_s`."""
    here = object.__new__(LoneGateway)
    no_slots: Any = lambda pool: NoSlots()  # noqa: E731
    await here.__init__(fleet, secrets, no_slots)  # type: ignore[misc]
    await here.reconfigure(settings_of(fleet.model_dump(mode="json")))
    try:
        async with asyncio.timeout(within_s):
            while not _knows(here, engines):  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(0.05)
        yield here
    finally:
        await Gateway.__del__(here)


def pool_of(gateway: Gateway) -> GatewayPool:
    """The first one of its fleet."""
    return next(iter(gateway.parts.pools.by_name.values()))


def _knows(gateway: Gateway, engines: int) -> bool:
    pools = gateway.parts.pools.by_name.values()
    known = sum(
        load.cache.synced for pool in pools for load in pool.scheduler.board.loads().values()
    )
    return known == engines and all(pool.reader.renderer.prompt_tokens for pool in pools)


async def serve(asked: dict[str, Any], said: Any) -> None:
    """Serve until stdin ends."""
    fleet = Fleet.model_validate(asked["fleet"])
    secrets = Secrets(asked["api_keys"], asked["secret"], asked["redis_url"])
    async with serving(fleet, secrets, asked["engines"], READY_S):
        print("true", file=said, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            pass


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    uvloop.run(serve(json.loads(sys.stdin.readline()), to_the_benchmark))
