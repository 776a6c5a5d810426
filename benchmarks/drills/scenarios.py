"""What is done to a fleet in each drill: it returns when that is over and the process is back."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import psutil

from benchmarks.drills.fleet import DrilledFleet, engine_core_of, eventually
from benchmarks.drills.verdict import Injury

FROZEN_S = 15.0
SLOW_S = 10.0
POOL, OVERFLOW = "engine", "other"

Scenario = Callable[[DrilledFleet], Awaitable[Injury]]


def now() -> float:
    return asyncio.get_running_loop().time()


async def replaced(fleet: DrilledFleet, pool: str, lost: str) -> None:
    """Once the pool has as many replicas as it should, without that one."""

    async def is_replaced() -> bool:
        told = (await fleet.status())[pool]
        ids = {replica["replica"] for replica in told["replicas"]}
        wanted = told["target_replicas"]
        return lost not in ids and len(ids) == wanted and told["states"] == {"RUNNING": wanted}

    await eventually(f"pool {pool} has another replica for {lost}", is_replaced)


async def of_replica(
    fleet: DrilledFleet,
    pool: str,
    what: int,
    whom: Callable[[psutil.Process], psutil.Process] = lambda replica: replica,
) -> Injury:
    """One that is killed, or frozen until it was replaced; else for FROZEN_S, and goes on."""
    actor = fleet.replicas(pool)[0]
    replica = await fleet.id_of(actor, pool)
    process, began = whom(actor), now()
    process.send_signal(what)
    try:
        await replaced(fleet, pool, replica)
    finally:
        if what == signal.SIGSTOP and process.is_running():
            process.resume()
    return Injury(began, now(), frozenset({replica}))


async def gateway_killed(fleet: DrilledFleet) -> Injury:
    before, began = fleet.gateways(), now()
    before[0].kill()

    async def is_back() -> bool:
        return before[0] not in (found := fleet.gateways()) and len(found) == len(before)

    await eventually("there are two gateways again", is_back)
    return Injury(began, now(), gateway=True)


async def frozen(process: psutil.Process, gateway: bool = False) -> Injury:
    began = now()
    process.suspend()
    try:
        await asyncio.sleep(FROZEN_S)
    finally:
        process.resume()
    return Injury(began, now(), gateway=gateway)


async def controller_killed(fleet: DrilledFleet) -> Injury:
    old, began = fleet.controller(), now()
    old.kill()

    async def is_back() -> bool:
        return fleet.controller().pid != old.pid

    await eventually("Ray Serve has a controller again", is_back)
    return Injury(began, now())


async def redis_killed(fleet: DrilledFleet) -> Injury:
    server, began = fleet.redis_server(), now()
    assert server is not None
    server.kill()

    async def is_back() -> bool:
        return bool(await asyncio.to_thread(fleet.client.ping))

    await eventually("Redis answers again", is_back)
    return Injury(began, now())


async def redis_frozen(fleet: DrilledFleet) -> Injury:
    server = fleet.redis_server()
    assert server is not None
    return await frozen(server)


async def redis_slow(fleet: DrilledFleet, ms: int) -> Injury:
    """Each command waits for so long, or for what is left of it."""
    began = now()
    while now() < began + SLOW_S:
        await asyncio.to_thread(fleet.client.client_pause, ms)
        await asyncio.sleep(ms / 1000 + 0.005)
    return Injury(began, now())


SCENARIOS: dict[str, Scenario] = {
    "gateway-killed": gateway_killed,
    "gateway-frozen": lambda fleet: frozen(fleet.gateways()[0], gateway=True),
    "engine-core-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL, engine_core_of),
    "engine-core-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP, engine_core_of),
    "replica-killed": lambda fleet: of_replica(fleet, POOL, signal.SIGKILL),
    "replica-frozen": lambda fleet: of_replica(fleet, POOL, signal.SIGSTOP),
    "overflow-engine-killed": lambda f: of_replica(f, OVERFLOW, signal.SIGKILL, engine_core_of),
    "controller-killed": controller_killed,
    "controller-frozen": lambda fleet: frozen(fleet.controller()),
    "redis-killed": redis_killed,
    "redis-frozen": redis_frozen,
    "redis-slow-50-ms": lambda fleet: redis_slow(fleet, 50),
    "redis-slow-500-ms": lambda fleet: redis_slow(fleet, 500),
}
