"""Promotes warm replicas of a pool when a request needs one. The request waits up to BUDGET_S."""

from __future__ import annotations

import asyncio

from deployments.gateway.record.pool_reporter import PoolReporter
from router.board.load import LoadBoard
from router.board.pool_feeds import PoolFeeds

# The longest wait of a request for a promotion, which takes one round trip to Redis.
BUDGET_S = 0.25


class WarmPromotions:
    """The promotions of one pool."""

    def __init__(self, feeds: PoolFeeds, board: LoadBoard, reporter: PoolReporter) -> None:
        self._feeds = feeds
        self._board = board
        self._reporter = reporter
        self._under_way: set[asyncio.Future[None]] = set()

    async def promote(self, since: float) -> None:
        """Promote a warm replica for a request that arrived at `since`; wait up to BUDGET_S."""
        promotion = asyncio.ensure_future(self._promote(since))
        self._under_way.add(promotion)
        promotion.add_done_callback(self._under_way.discard)
        # after the timeout the promotion continues, for later requests
        await asyncio.wait({promotion}, timeout=BUDGET_S)

    async def _promote(self, since: float) -> None:
        before = self._board.loads().keys()
        if await self._feeds.promote():
            for replica_id in self._board.loads().keys() - before:
                self._reporter.promoted(replica_id, since)
