"""The prefix index: replicas by cached prefix of a prompt, read from Redis by a gateway.

    key         value    meaning
    s:<digest>  bitmap   bit i set: the replica in slot i holds this segment and
                         every segment before it
    s:<digest>h bitmap   the same, with segments that it can load from its host tier
    s:<digest>d bitmap   the same, with segments that it can read from its disk tier, too

A lookup takes one small read for an unknown prompt, and rarely more than two (see `depth_search`).
It may report less than a replica has. Nothing here raises into a request or exceeds the budget:
while Redis is slow or unavailable `lookup` returns None, and after a few failures without a call.
The caller knows whether a slot is live.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from common.loops import forever
from router.index.breaker import Breaker
from router.index.depth_search import DepthSearch
from router.index.slots import segment_prefix
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.redis_lane import Lane, open_lane

logger = logging.getLogger(__name__)

# slot -> number of leading segments in the replica's cache, at least 1
Depths: TypeAlias = Mapping[int, int]

BUDGET_S = 0.005
PROBE_PERIOD_S = 0.1
# A new connection may take longer than a lookup's budget, so it is opened concurrently.
CONNECT_TIMEOUT_S = 1.0
RECENT = 256


class PrefixIndex:
    """One pool's index from the view of a gateway.

    `lookups` counts those that asked Redis, `failures` those of them without an answer, `skipped`
    those that did not ask because the breaker was open; `recent_seconds` are the times of the last
    answers.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._prefix = segment_prefix(pool)
        self.budget_s = budget_s
        self._clock = clock
        self._breaker = Breaker()
        self._lane: Lane | None = None
        self._opening: asyncio.Task[Lane] | None = None
        # Set while there may be something to repair: no connection, or an open breaker.
        self._is_troubled = asyncio.Event()
        self._is_troubled.set()
        self.lookups = 0
        self.failures = 0
        self.skipped = 0
        self.recent_seconds: deque[float] = deque(maxlen=RECENT)

    @property
    def breaker_open(self) -> bool:
        return self._breaker.is_open

    async def lookup(self, keys: Sequence[bytes]) -> Depths | None:
        """Return the number of leading segments of each slot; None if Redis did not answer in time.

        `keys` are a prompt's segment keys from its first on.
        """
        if not keys:
            return {}
        if self._breaker.is_open:
            self.skipped += 1
            return None
        self.lookups += 1
        began = self._clock()
        try:
            depths = await self._search(keys, self._deadline())
        except REDIS_FAILURES as error:
            self.failures += 1
            self._is_troubled.set()
            if self._breaker.failed(began, self._clock()):
                logger.warning(
                    "prefix index of %s does not answer; placing requests without it: %s",
                    self._pool,
                    str(error) or "no reply in time",
                )
            # After an error, another server may have the keys.
            if self._breaker.is_open or isinstance(error, ResponseError):
                await self._hang_up()
            return None
        self._breaker.succeeded()
        self.recent_seconds.append(self._clock() - began)
        return depths

    async def run(self) -> None:
        """Keep a connection open and close the breaker again; cancelled to stop."""
        try:
            await forever(
                "prefix_index",
                self._tend,
                PROBE_PERIOD_S,
                fails=f"failed to maintain the prefix index of {self._pool}",
                logger=logger,
            )
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        await self._hang_up()

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.budget_s

    async def _search(self, keys: Sequence[bytes], deadline: float) -> Depths:
        prefix = self._prefix
        search = DepthSearch(len(keys))
        lane = self._open_lane()
        if lane is None:
            async with asyncio.timeout_at(deadline):
                lane = await self._connected()
        while positions := search.positions():
            asked = [prefix + keys[position] for position in positions]
            search.read(await lane.mget(asked, deadline))
        return search.depths()

    async def _tend(self) -> None:
        await self._is_troubled.wait()
        good = False
        try:
            lane = await self._connected()
            if self._breaker.is_open:
                await lane.mget([self._prefix], self._deadline())
                good = True
        except Exception as error:  # a connection that failed in any way is not used again
            await self._hang_up()
            if not isinstance(error, REDIS_FAILURES):
                raise
            logger.debug("prefix index of %s: %s", self._pool, error)
        if self._breaker.is_open and self._breaker.probed(good):
            logger.info("prefix index of %s answers again", self._pool)
        if self._open_lane() is not None and not self._breaker.is_open:
            self._is_troubled.clear()

    def _open_lane(self) -> Lane | None:
        return None if self._lane is None or self._lane.closed else self._lane

    async def _connected(self) -> Lane:
        if (lane := self._open_lane()) is not None:
            return lane
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        opening = self._opening
        try:
            # A caller that stops waiting does not cancel the connection of the others.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if not opening.cancelled():
                raise
            raise RedisConnectionError("the index was closed") from None

    async def _open(self) -> Lane:
        try:
            await self._hang_up()
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                self._lane = await open_lane(self._redis, self._prefix, self._is_troubled.set)
            return self._lane
        finally:
            self._opening = None

    async def _hang_up(self) -> None:
        if self._lane is not None:
            lane, self._lane = self._lane, None
            await lane.aclose()
