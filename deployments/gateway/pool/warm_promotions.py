"""Gives warm replicas of a pool traffic when a request needs one, for which that waits a little."""

from __future__ import annotations

import asyncio

from deployments.gateway.record.pool_reporter import PoolReporter
from router.load import LoadBoard
from router.pool_feeds import PoolFeeds

# How long a request waits for a warm replica to be given traffic: one round trip to Redis.
BUDGET_S = 0.25


class WarmPromotions:
    """Of one pool."""

    def __init__(self, feeds: PoolFeeds, board: LoadBoard, reporter: PoolReporter) -> None:
        self._feeds = feeds
        self._board = board
        self._reporter = reporter
        self._under_way: set[asyncio.Future[None]] = set()

    async def promote(self, since: float) -> None:
        """Let a warm replica take traffic for a request that came at `since`; wait a little."""
        promotion = asyncio.ensure_future(self._promote(since))
        self._under_way.add(promotion)
        promotion.add_done_callback(self._under_way.discard)
        # goes on by itself: the next request has the replica that this one could not wait for
        await asyncio.wait({promotion}, timeout=BUDGET_S)

    async def _promote(self, since: float) -> None:
        before = self._board.loads().keys()
        if await self._feeds.promote():
            for replica_id in self._board.loads().keys() - before:
                self._reporter.promoted(replica_id, since)
