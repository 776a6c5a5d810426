"""A real Redis Cluster of some shards, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from router.redis.redis_client import AsyncRedis, connect
from tests.ports import cluster_ports
from tests.router.redis_process import RedisProcess, running


@asynccontextmanager
async def cluster_of(folder: Path, shards: int) -> AsyncIterator[list[RedisProcess]]:
    """The shards; the hash slots are spread over them evenly."""
    ports = cluster_ports(shards)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                running(folder / str(port), port, f"port {port}\ncluster-enabled yes\n")
            )
            for port in ports
        ]
        await _join(ports)
        yield servers


async def _join(ports: list[int]) -> None:
    share = -(-16384 // len(ports))
    shards = [connect(f"redis://127.0.0.1:{port}/0") for port in ports]
    for number, shard in enumerate(shards):
        slots = range(number * share, min((number + 1) * share, 16384))
        await shard.execute_command("CLUSTER", "ADDSLOTS", *map(str, slots))
        await shard.execute_command("CLUSTER", "MEET", "127.0.0.1", str(ports[0]))
    for shard in shards:
        await _until(shard, "SLOTS", lambda reply: reply.count("127.0.0.1") >= len(ports))
        await _until(shard, "INFO", lambda reply: "cluster_state:ok" in reply)
        await shard.aclose()


async def _until(shard: AsyncRedis, question: str, enough: Callable[[str], bool]) -> None:
    async with asyncio.timeout(60):
        while not enough(  # noqa: ASYNC110  # each look is a command
            str(await shard.execute_command("CLUSTER", question))
        ):
            await asyncio.sleep(0.05)
