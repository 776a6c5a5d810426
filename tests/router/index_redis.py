"""Real servers for the index's tests, and what is in them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import redis

from router.board.active import active_key
from router.index import slots
from router.index.slots import segment_prefix
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, connect
from router.redis.redis_lane import KeptLane
from tests.ports import cluster_ports, free_ports
from tests.router.redis_process import RedisProcess, running

POOL = "fleet/main"
# A busy machine is slow, not wrong.
PATIENCE_S = 60.0
TOPOLOGIES = ("redis", "redis+cluster")


@contextmanager
def server_of(topology: str, folder: Path) -> Iterator[RedisProcess]:
    """One server; for `redis+cluster` a whole cluster by itself."""
    if topology == "redis":
        (port,) = free_ports(1)
        with running(folder, port, f"port {port}\n") as server:
            yield server
        return
    (port,) = cluster_ports(1)
    with running(folder, port, f"port {port}\ncluster-enabled yes\n") as server:
        with control(server) as client:
            ask: Callable[..., object] = client.execute_command
            ask("CLUSTER", "ADDSLOTS", *range(16384))
            while "cluster_state:ok" not in str(ask("CLUSTER", "INFO")):
                assert server.process.poll() is None
        yield server


@contextmanager
def control(server: RedisProcess) -> Iterator["redis.Redis"]:
    """A blocking client, for what happens to Redis from outside. Replies are bytes."""
    client = redis.Redis(port=server.port)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def client_of(server: RedisProcess, topology: str = "redis") -> AsyncIterator[AsyncRedis]:
    client = connect(f"{topology}://127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        await client.aclose()


def bits(server: RedisProcess, pool: str = POOL) -> dict[bytes, set[int]]:
    """Segment key -> the slots whose bit is set; a bitmap without any is an empty set."""
    prefix = segment_prefix(pool)
    with control(server) as client:
        names = [n for n in cast(list[bytes], client.keys("*")) if n.startswith(prefix)]
        values = cast(list[bytes | None], client.mget(names)) if names else []
    return {
        name.removeprefix(prefix): {
            8 * i + bit for i, byte in enumerate(value) for bit in range(8) if byte & 128 >> bit
        }
        for name, value in zip(names, values, strict=True)
        if value is not None
    }


def holders(server: RedisProcess, slot: int) -> set[bytes]:
    """The segment keys whose bitmap has the slot's bit."""
    return {key for key, slots in bits(server).items() if slot in slots}


async def leases(redis: AsyncRedis, pool: str) -> slots.Leases:
    async with KeptLane(redis, slots.slots_key(pool).encode()).within(
        slots.REDIS_TIMEOUT_S
    ) as lane:
        try:
            return await slots.read_leases(lane, pool, active_key(pool))
        finally:
            await lane.aclose()


async def live(redis: AsyncRedis, pool: str) -> dict[int, str]:
    """Slot -> snapshot of the live replicas."""
    return (await leases(redis, pool)).live


async def registry(redis: AsyncRedis, pool: str) -> Mapping[int, str]:
    """Slot -> who writes under it."""
    return (await leases(redis, pool)).taken.writers


async def read_slots(redis: AsyncRedis, pool: str) -> slots.Taken | None:
    """As a gateway that reads the loads gives them to its sweeper."""
    try:
        async with asyncio.timeout(slots.REDIS_TIMEOUT_S):
            return (await leases(redis, pool)).taken
    except REDIS_FAILURES:
        return None


def names(server: RedisProcess) -> set[str]:
    with control(server) as client:
        found: Any = client.keys("*")
    return {name.decode("latin-1") for name in found}
