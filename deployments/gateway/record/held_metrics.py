"""What a gateway holds in memory, as metrics: they show what grows for ever."""

from __future__ import annotations

import asyncio
import logging

from common.loops import forever
from observability.families import Families
from observability.held_items import held_items

logger = logging.getLogger("ray.serve")

# To walk a gateway's objects and write what they hold takes the event loop about 0.6 ms.
PERIOD_S = 5.0


class HeldMetrics:
    """Of one gateway process, whose objects `root` leads to."""

    def __init__(self, families: Families, root: object) -> None:
        self._families = families
        self._root = root
        self._holders: set[str] = set()

    async def run(self) -> None:
        """Keep the gauges up to date until cancelled."""

        async def refresh() -> None:
            self.refresh()

        fails = "what the gateway holds is not shown"
        await forever("held_metrics", refresh, PERIOD_S, fails=fails, logger=logger)

    def refresh(self) -> None:
        """Bring the gauges up to date; those of a holder that has gone say 0."""
        self._families.tasks.set(len(asyncio.all_tasks()))
        held = held_items(self._root)
        self._holders |= held.keys()
        for holder in self._holders:
            self._families.held_items.labels(holder).set(held[holder])
