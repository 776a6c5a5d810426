"""The engine block events a second that one publisher writes to Redis, for make bench-index.

An engine with a full cache sends such events (msgpack). Each batch stores the blocks of two new
prompts. It evicts as many of the oldest, the last block of a prompt first, one event per block.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from router.index.cached_blocks import CachedBlocks
from router.index.event_stream import EventBatch
from router.index.kv_events import BlockRemoved, BlockStored, decode
from router.index.publisher import IndexPublisher, Lease
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from router.index.slots import segment_prefix
from router.redis.redis_client import AsyncRedis

POOL = "bench/publishing"
MODEL = "bench"
BLOCK_TOKENS = 16
SEGMENT_TOKENS = 128
PROMPT_BLOCKS = 128
PROMPTS_A_BATCH = 2
# 131,072 tokens: about what a GPU's KV cache holds.
CACHED_PROMPTS = 64
BATCHES = 1_000
WAIT_S = 120.0


def prompt(number: int) -> list[int]:
    tokens = range(PROMPT_BLOCKS * BLOCK_TOKENS)
    return [(number * 7919 + position) % 150_000 for position in tokens]


def block_hashes(number: int) -> list[bytes | int]:
    return [hashlib.sha256(b"%d %d" % (number, i)).digest() for i in range(PROMPT_BLOCKS)]


def payloads(batches: int) -> tuple[list[bytes], int]:
    """Encoded batches, and how many blocks they store or remove."""
    cached: deque[int] = deque()
    encoded, blocks = [], 0
    for batch in range(batches):
        events: list[Any] = []
        for number in range(batch * PROMPTS_A_BATCH, (batch + 1) * PROMPTS_A_BATCH):
            if len(cached) == CACHED_PROMPTS:
                evicted = block_hashes(cached.popleft())
                events += [BlockRemoved([hash_], medium="GPU") for hash_ in reversed(evicted)]
                blocks += PROMPT_BLOCKS
            hashes = block_hashes(number)
            events.append(BlockStored(hashes, None, prompt(number), BLOCK_TOKENS, medium="GPU"))
            blocks += PROMPT_BLOCKS
            cached.append(number)
        encoded.append(msgspec.msgpack.encode((0.0, events)))
    return encoded, blocks


async def block_events_per_second(redis: AsyncRedis) -> float:
    """From the first event until all that is held afterwards is in Redis."""
    encoded, blocks = payloads(BATCHES)
    hasher = SegmentHasher(index_secret("bench"))
    last = prompt(BATCHES * PROMPTS_A_BATCH - 1)
    last_key = hasher.keys(Namespace(MODEL), last, SEGMENT_TOKENS)[-1]
    begin = asyncio.Event()

    async def batches() -> AsyncGenerator[EventBatch, None]:
        await begin.wait()
        for payload in encoded:
            yield EventBatch(decode(payload), lost=False)
        await asyncio.Event().wait()

    publisher = IndexPublisher(
        redis, POOL, CachedBlocks(hasher, MODEL, None, SEGMENT_TOKENS), _snapshot
    )
    publisher.start(batches)
    try:
        async with asyncio.timeout(WAIT_S):
            while not publisher.synced:  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(0.01)
            began = time.perf_counter()
            begin.set()
            while not await redis.exists(  # noqa: ASYNC110  # each look is a command
                segment_prefix(POOL) + last_key
            ):
                await asyncio.sleep(0.005)
            return blocks / (time.perf_counter() - began)
    finally:
        await publisher.stop()


def _snapshot(lease: Lease) -> str:
    return json.dumps({"incarnation": lease.incarnation})
