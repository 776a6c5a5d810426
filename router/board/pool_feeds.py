"""The exchange of one gateway about one pool through Redis.

It keeps a `LoadBoard` current, looks prompts up in the prefix index, receives other gateways'
placements and removes dead replicas. Nothing here fails a request: `look_up` keeps to its budget,
`announce` never waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from router.board.load import LoadBoard
from router.board.load_reader import READ_PERIOD_S, LoadReader
from router.board.placed_stream import PlacedStream
from router.board.recent import Placed, TierDepths
from router.index.cached_blocks import Tier, tier_key
from router.index.index import Depths, PrefixIndex
from router.index.sweeper import Sweeper
from router.redis.redis_client import AsyncRedis
from router.redis.signature import Signer


class PoolFeeds:
    """`text` decodes its replies, for the board, the leases and the scripts; `binary` returns
    bytes, for the index and the stream of placements.

    `gateway` identifies this one in its announcements; `heard` gets the others' placements. `loads`
    and `index` are public. `signer`: only data that it signed is trusted; None: all is.
    """

    def __init__(
        self,
        text: AsyncRedis,
        binary: AsyncRedis,
        pool: str,
        board: LoadBoard,
        gateway: str,
        heard: Callable[[Placed], None],
        lookup_budget_s: float,
        scaled: bool = False,
        clock: Callable[[], float] = time.monotonic,
        signer: Signer | None = None,
    ) -> None:
        self.loads = LoadReader(text, pool, board, scaled, signer)
        self._placements = PlacedStream(binary, pool, gateway, heard, signer=signer)
        self._sweeper = Sweeper(text, pool, self.loads.next_taken)
        self.index = PrefixIndex(binary, pool, lookup_budget_s, clock)

    async def run(self, loads_needed_every_s: Callable[[], float] = lambda: READ_PERIOD_S) -> None:
        """Keep the data current until cancelled; see `LoadReader.run`."""
        parts = (self.index, self._placements, self._sweeper)
        loads = self.loads.run(loads_needed_every_s)
        await asyncio.gather(loads, *(part.run() for part in parts))

    async def look_up(
        self, keys: Sequence[bytes], tiers: Sequence[Tier] = ()
    ) -> tuple[Depths | None, TierDepths]:
        """Return leading segments by slot: the cached ones, None without an answer within the
        budget, and those that are in each of these tiers or cached.

        The load board is read at the same time, if it is not fresh, and within that budget.
        """
        fresh = self.loads.fresh(self.index.budget_s)
        lookups = [self.index.lookup([tier_key(key, tier) for key in keys]) for tier in tiers]
        depths, _, *found = await asyncio.gather(self.index.lookup(keys), fresh, *lookups)
        of = {tier.name.lower(): at or {} for tier, at in zip(tiers, found, strict=True)}
        return depths, TierDepths(**of)

    def announce(self, placed: Placed) -> None:
        """Announce a placement of this gateway to the others."""
        self._placements.append(placed)

    async def promote(self) -> bool:
        """See `LoadReader.promote`."""
        return await self.loads.promote()
