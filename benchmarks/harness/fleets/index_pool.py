"""A pool on a Redis: an index as publishers leave it, and the board of its replicas.

Three mixes of what replicas hold of a prompt's segments:

    conversation   all hold the first eighth, a shared system prompt; three hold more: to three
                   segments from its end, to a half and to a third
    ladder         each caches a different depth, the most there is to read
    cold           none holds any
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import redis

from autoscaling.admission.pool_scheduler import PoolScheduler
from router.board.load import EnginePace, ReplicaCache, ReplicaLoad, ReplicaQueue
from router.board.pool_feeds import PoolFeeds
from router.index.segment_keys import KEY_BYTES
from router.index.slots import SEGMENT_TTL_S, claim, segment_prefix, write_bits
from router.redis.redis_client import AsyncRedis, connect

POOL = "bench/main"
# Replicas of a pool of moderate size.
SMALL = 64
SEGMENT_TOKENS = 128
# Long enough that no slow lookup is cut off.
PATIENT_S = 10.0
MIXES = ("conversation", "ladder", "cold")

# Segments of other prompts, each held by one replica; KEYS[1] is the prefix of their names.
_FILL = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local name = KEYS[1] .. string.format('%016x', i)
  redis.call('SETBIT', name, math.random(0, tonumber(ARGV[3]) - 1), 1)
  redis.call('EXPIRE', name, ARGV[4])
end
"""
_FILL_AT_ONCE = 50_000
# A power of two: Redis has just doubled its tables, so a segment takes the most bytes.
_PUBLISHED = 2**17
_PUBLISHED_AT_ONCE = 2**13


def placing(url: str, stack: AsyncExitStack) -> tuple[PoolScheduler, PoolFeeds]:
    """The parts with which a gateway places requests on this pool; `stack` closes them."""
    text, binary = connect(url), connect(url, decode=False)
    scheduler = PoolScheduler(time.monotonic)
    feeds = PoolFeeds(
        text, binary, POOL, scheduler.board, scheduler.gateway, scheduler.heard, PATIENT_S
    )
    scheduler.announce = feeds.announce
    for client in (text, binary, feeds.index):
        stack.push_async_callback(client.aclose)
    return scheduler, feeds


def board_of(replicas: int) -> list[ReplicaLoad]:
    """The loads of that many replicas, of all sizes."""
    return [
        ReplicaLoad(
            replica_id=f"replica-{slot:04}",
            slot=slot,
            incarnation=f"{slot:016x}",
            url=f"http://10.0.0.{slot}:8000",
            node_ip=f"10.0.0.{slot}",
            queue=ReplicaQueue(
                waiting=slot % 3,
                running=slot % 17,
                prefill_tokens=slot % 3 * 2_000,
            ),
            cache=ReplicaCache(
                use=slot / replicas,
                capacity_tokens=131_072,
                segment_tokens=SEGMENT_TOKENS,
            ),
            pace=EnginePace(
                prefill_rate=20_000.0,
                inter_token_latency=0.02,
            ),
        )
        for slot in range(replicas)
    ]


def depths_of(mix: str, segments: int, replicas: int) -> dict[int, int]:
    """Slot -> leading segments held."""
    if mix == "cold":
        return {}
    if mix == "ladder":
        return {slot: 1 + slot * segments // replicas for slot in range(replicas)}
    conversation = {3: segments - 3, 9: segments // 2, 17: segments // 3}
    return dict.fromkeys(range(replicas), segments // 8) | conversation


def prompt_keys(segments: int) -> list[bytes]:
    return [random.randbytes(KEY_BYTES) for _ in range(segments)]


def hold(url: str, keys: list[bytes], depths: Mapping[int, int]) -> None:
    """Each slot of `depths` holds that many leading segments."""
    with redis.Redis.from_url(url) as client:
        pipe = client.pipeline(transaction=False)
        for slot, depth in depths.items():
            for key in keys[:depth]:
                pipe.setbit(segment_prefix(POOL) + key, slot, 1)
        for key in keys:
            pipe.expire(segment_prefix(POOL) + key, SEGMENT_TTL_S)
        pipe.execute()


def fill(url: str, segments: int, replicas: int) -> None:
    """Add that many segments of other prompts."""
    with redis.Redis.from_url(url, socket_timeout=60) as client:
        for begin in range(0, segments, _FILL_AT_ONCE):
            end = min(begin + _FILL_AT_ONCE, segments)
            client.eval(_FILL, 1, segment_prefix(POOL), begin, end, replicas, SEGMENT_TTL_S)


async def bytes_per_segment(client: AsyncRedis, url: str, pool: str, replicas: int) -> float:
    """As a publisher writes them, in the last slot of the replicas: the longest bitmaps."""
    slot = await claim(client, pool, "bench", wanted=replicas - 1)
    with redis.Redis.from_url(url) as observer:
        before = _used_memory(observer)
        for _ in range(_PUBLISHED // _PUBLISHED_AT_ONCE):
            keys = prompt_keys(_PUBLISHED_AT_ONCE)
            assert await write_bits(client, pool, slot, "bench", keys, [])
        return (_used_memory(observer) - before) / _PUBLISHED


def _used_memory(client: redis.Redis) -> int:
    info: dict[str, Any] = dict(client.info("memory"))
    return int(info["used_memory"])
