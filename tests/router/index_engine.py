"""An engine's KV events by hand, and a publisher that follows them, for tests."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from router.index.cached_blocks import CachedBlocks
from router.index.event_stream import EventBatch
from router.index.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from router.index.publisher import IndexPublisher, Lease
from router.index.segment_keys import SegmentHasher, index_secret
from router.redis.redis_client import AsyncRedis
from tests.router.index_redis import PATIENCE_S, POOL, holders
from tests.router.redis_process import RedisProcess
from tests.waiting import until

BLOCK_TOKENS, SEGMENT_TOKENS = 4, 8
HASHER = SegmentHasher(index_secret("fleet secret"))


def stored(prompt: int, segments: int = 2) -> KvEvent:
    """The prompt with this number is cached, all its segments."""
    tokens = [prompt] + [0] * (segments * SEGMENT_TOKENS - 1)
    blocks = len(tokens) // BLOCK_TOKENS
    return BlockStored(_hashes(prompt, blocks), None, tokens, BLOCK_TOKENS)


def removed(prompt: int, segments: int = 2) -> KvEvent:
    return BlockRemoved(_hashes(prompt, segments * SEGMENT_TOKENS // BLOCK_TOKENS)[::-1])


def all_cleared() -> KvEvent:
    return AllBlocksCleared()


def _hashes(prompt: int, blocks: int) -> list[bytes | int]:
    return [b"%d.%d" % (prompt, i) for i in range(blocks)]


class Feed:
    """An event stream that a test writes."""

    def __init__(self) -> None:
        self._batches: asyncio.Queue[EventBatch | Exception] = asyncio.Queue()

    def put(self, *events: KvEvent, lost: bool = False) -> None:
        self._batches.put_nowait(EventBatch(list(events), lost))

    def fail(self, error: Exception) -> None:
        self._batches.put_nowait(error)

    def is_read(self) -> bool:
        return self._batches.empty()

    async def batches(self) -> AsyncGenerator[EventBatch, None]:
        while True:
            batch = await self._batches.get()
            if isinstance(batch, Exception):
                raise batch
            yield batch


@dataclass
class Replica:
    """One replica's engine and publisher, and what its snapshots reported of its lease."""

    feed: Feed
    cached: CachedBlocks
    leases: list[Lease] = field(default_factory=list)
    losses: int = 0
    is_measurable: bool = True
    publisher: IndexPublisher = field(init=False)

    @property
    def slot(self) -> int:
        return self.leases[-1].slot

    @property
    def incarnation(self) -> str:
        return self.leases[-1].incarnation

    def measure(self, lease: Lease) -> str:
        if not self.is_measurable:
            raise ArithmeticError("of this test")
        self.leases.append(lease)
        return json.dumps({"incarnation": lease.incarnation})

    def lost(self) -> None:
        self.losses += 1

    async def until_exact(self, server: RedisProcess, segments: int) -> None:
        """Until just this many segments are cached, and just they are in Redis."""

        def exact() -> bool:
            keys = set(self.cached.keys())
            return (
                len(keys) == segments
                and self.publisher.synced
                and holders(server, self.slot) == keys
            )

        await until(exact, PATIENCE_S)


@asynccontextmanager
async def replica_on(
    redis: AsyncRedis, events: Sequence[KvEvent] = (), max_copies: int | None = None, **more: Any
) -> AsyncIterator[Replica]:
    cached = CachedBlocks(HASHER, "main", None, SEGMENT_TOKENS, max_copies)
    replica = Replica(Feed(), cached)
    replica.publisher = IndexPublisher(redis, POOL, cached, replica.measure, replica.lost, **more)
    replica.feed.put(*events)
    replica.publisher.start(replica.feed.batches)
    try:
        yield replica
    finally:
        await replica.publisher.stop()
