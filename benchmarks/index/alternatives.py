"""What is usually built instead of bitmaps: the replicas of each segment by name, read in one
pipeline, for make bench-index.

    smembers   a set of replica ids for each segment
    hkeys      a hash of replica id -> time of the last use for each segment
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import redis
from redis.asyncio import Redis

NAMES = ("smembers", "hkeys")


def hold(url: str, name: str, keys: list[bytes], depths: Mapping[int, int]) -> None:
    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for slot, depth in depths.items():
            for key in keys[:depth]:
                if name == "smembers":
                    pipe.sadd(_redis_key(name, key), f"replica-{slot:04}")
                else:
                    pipe.hset(_redis_key(name, key), f"replica-{slot:04}", "1700000000")
        pipe.execute()


async def lookup(client: Redis, name: str, keys: list[bytes]) -> dict[bytes, int]:
    """Replica id -> leading segments held."""
    pipe: Any = client.pipeline(transaction=False)
    for key in keys:
        getattr(pipe, name)(_redis_key(name, key))
    return _depths(await pipe.execute())


def _depths(holders: Iterable[Iterable[bytes]]) -> dict[bytes, int]:
    depths: dict[bytes, int] = {}
    alive: set[bytes] | None = None
    for depth, replicas in enumerate(holders, 1):
        alive = set(replicas) if alive is None else alive.intersection(replicas)
        if not alive:
            break
        for replica in alive:
            depths[replica] = depth
    return depths


def _redis_key(name: str, key: bytes) -> bytes:
    return b"bench:%s:%s" % (name.encode(), key)
