"""An index in Redis as publishers write it, and lookups in it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from router.index.index import Depths, PrefixIndex
from router.index.slots import segment_prefix
from router.redis.redis_client import AsyncRedis
from tests.router.bitmaps import bitmaps_of

POOL = "fleet/main"
PREFIX = segment_prefix("fleet/main")
# Where Redis answers, on however slow a machine; and where it does not.
PATIENT_S = 5.0
BUDGET_S = 0.05


def keys_of(segments: int) -> list[bytes]:
    return [b"%016d" % segment for segment in range(segments)]


async def write_depths(redis: AsyncRedis, depths: Mapping[int, int], segments: int) -> None:
    """Write these depths as publishers do, in place of all that Redis holds."""
    await redis.flushall()
    for key, bitmap in zip(keys_of(segments), bitmaps_of(depths, segments), strict=True):
        if bitmap is not None:
            await redis.set(PREFIX + key, bitmap)


@asynccontextmanager
async def running_index(index: PrefixIndex) -> AsyncIterator[None]:
    task = asyncio.create_task(index.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def lookup_with_retries(index: PrefixIndex, segments: int) -> Depths | None:
    """One lookup of several, for a machine too busy to do one within the budget."""
    for _ in range(20):
        if (depths := await index.lookup(keys_of(segments))) is not None:
            return depths
        await asyncio.sleep(0.05)
    return None
