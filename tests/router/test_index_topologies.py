"""Lookups in the index where Redis is a cluster, or is named by sentinels."""

import signal
from pathlib import Path

import pytest
from redis.exceptions import MovedError

from router.index.index import PrefixIndex
from router.redis.redis_client import AsyncRedis, connect
from tests.ports import free_ports
from tests.router.index_lookups import (
    BUDGET_S,
    PATIENT_S,
    POOL,
    PREFIX,
    keys_of,
    lookup_with_retries,
    running_index,
    write_depths,
)
from tests.router.redis_cluster import cluster_of
from tests.router.redis_process import running
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient_connections")


async def test_on_a_cluster_lookups_go_to_the_shard_and_follow_it_when_it_moves(
    tmp_path: Path,
) -> None:
    async with cluster_of(tmp_path, 2) as servers:
        redis = connect(f"redis+cluster://127.0.0.1:{servers[0].port}", decode=False)
        shards = [connect(f"redis://127.0.0.1:{server.port}/0") for server in servers]
        index = PrefixIndex(redis, POOL, PATIENT_S)
        (key,) = keys_of(1)
        for _ in range(2):
            await redis.set(PREFIX + key, b"\x80")
            assert await index.lookup([key]) == {0: 1}
            await redis.delete(PREFIX + key)
            assert await index.lookup([key]) == {}
            await move(shards, await shards[0].execute_command("CLUSTER", "KEYSLOT", PREFIX))
            assert await index.lookup([key]) is None
        assert await index.lookup([key]) == {}
        await index.aclose()
        for client in (redis, *shards):
            await client.aclose()


async def move(shards: list[AsyncRedis], hash_slot: int) -> None:
    """Give an empty hash slot to the other of two shards."""
    ids = [str(await shard.execute_command("CLUSTER", "MYID")) for shard in shards]
    owns = [bool(await is_owner(shard, hash_slot)) for shard in shards]
    (new,) = (name for name, owner in zip(ids, owns, strict=True) if not owner)
    for shard in shards if owns[1] else shards[::-1]:
        await shard.execute_command("CLUSTER", "SETSLOT", str(hash_slot), "NODE", new)


async def is_owner(shard: AsyncRedis, hash_slot: int) -> bool:
    try:
        await shard.execute_command("GET", PREFIX)
    except MovedError:
        return False
    return True


async def test_lookups_resume_when_a_frozen_cluster_continues(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as (server,):
        redis = connect(f"redis+cluster://127.0.0.1:{server.port}", decode=False)
        index = PrefixIndex(redis, POOL, BUDGET_S)
        async with running_index(index):
            assert await lookup_with_retries(index, 3) == {}
            server.process.send_signal(signal.SIGSTOP)
            assert [await index.lookup(keys_of(3)) for _ in range(5)] == [None] * 5
            assert index.breaker_open
            server.process.send_signal(signal.SIGCONT)
            await until(lambda: not index.breaker_open)
            assert await lookup_with_retries(index, 3) == {}
        await redis.aclose()


async def test_lookups_go_to_the_server_that_sentinel_names(tmp_path: Path) -> None:
    primary, sentinel = free_ports(2)
    watch = f"sentinel monitor main 127.0.0.1 {primary} 1\n"
    with (
        running(tmp_path / "primary", primary, f"port {primary}\n"),
        running(tmp_path / "sentinel", sentinel, f"port {sentinel}\n{watch}", "--sentinel"),
    ):
        redis = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel}/main", decode=False)
        await write_depths(redis, {3: 2}, 3)
        index = PrefixIndex(redis, POOL, PATIENT_S)
        assert await index.lookup(keys_of(3)) == {3: 2}
        await index.aclose()
        await redis.aclose()
