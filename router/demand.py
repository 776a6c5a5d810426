"""What comes to a pool, as its gateways count it, for the autoscaler; and what it makes of that.

    key       value                                              lifetime
    demand    hash: gateway -> `DemandCounters`, JSON, written    60 s after the
              every 0.5 s where they changed, else every second  last writing
    decided   `Decided`, JSON, written every 0.5 s                10 s

Each gateway counts from its own start. The reader adds up what each count grew by, so the sums
never fall: not when a gateway starts again, goes away, or is heard of again after an outage.
Nothing here raises or makes a request wait; while Redis is away `told_at` grows old.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from common.loops import forever
from router import redis_keys
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.slots import REDIS_TIMEOUT_S

logger = logging.getLogger(__name__)

WRITE_PERIOD_S = 0.5
UNCHANGED_PERIOD_S = 1.0
EXPIRE_S = 60
DECIDED_EXPIRE_S = 10
# A gateway that wrote nothing for so long is gone, and with it what it held.
FORGET_S = 10.0
SOURCES_KEPT = 1000

_COUNTS = ("arrived", "prompt_tokens", "uncached_tokens", "refused", "overflowed")


class DemandCounters(msgspec.Struct):
    """One gateway's counts since its start, and what it holds now: requests, prompt tokens.

    The fields are those of `Demand`; whoever serves a request adds to them. `sequence` is `tell`'s.
    """

    sequence: int = 0
    arrived: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    refused: int = 0
    overflowed: int = 0
    waiting: int = 0
    queued_tokens: int = 0


@dataclass(frozen=True)
class Demand:
    """A pool's demand over all its gateways; the first five only ever grow.

    `arrived` requests came for the pool with `prompt_tokens`, of which `uncached_tokens` were to
    be computed; `refused` and `overflowed` are among them. `waiting` requests are held in
    gateways now, with `queued_tokens` to compute. `told_at`: when a gateway was last heard of, on
    the reader's clock; None: never.
    """

    arrived: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    refused: int = 0
    overflowed: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    told_at: float | None = None


class Decided(msgspec.Struct, frozen=True):
    """What the autoscaler last decided: `demand` replicas to take traffic, of `target` to run.

    `arrivals` a second came lately, `forecast` are expected by the time a new replica could serve.
    `failures`: what nobody expected in the autoscaler's process, counted from its start.
    """

    demand: int
    target: int
    because: str
    arrivals: float = 0.0
    forecast: float | None = None
    failures: int = 0


_decided = msgspec.json.Decoder(Decided).decode


def decided_key(pool: str) -> str:
    return redis_keys.key(pool, "decided")


async def tell_decided(redis: AsyncRedis, pool: str, decided: Decided) -> None:
    """For the gateways to show. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        text = msgspec.json.encode(decided).decode()
        await redis.set(decided_key(pool), text, ex=DECIDED_EXPIRE_S)


async def read_decided(redis: AsyncRedis, pool: str) -> Decided | None:
    """None: nobody decides. Raises one of REDIS_FAILURES."""
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        text = cast("str | None", await redis.get(decided_key(pool)))
    try:
        return None if text is None else _decided(text)
    except msgspec.MsgspecError:  # by another release
        return None


def demand_key(pool: str) -> str:
    return redis_keys.key(pool, "demand")


async def tell(redis: AsyncRedis, pool: str, gateway: str, counters: DemandCounters) -> None:
    """Write one gateway's counters until cancelled."""
    written, written_at = DemandCounters(sequence=-1), float("-inf")

    async def write() -> None:
        nonlocal written, written_at
        now = asyncio.get_running_loop().time()
        # half a period of slack: steps of a loop are not taken at exact times
        is_due = now - written_at > UNCHANGED_PERIOD_S - WRITE_PERIOD_S / 2
        if counters == written and not is_due:
            return
        counters.sequence += 1
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            pipe = redis.pipeline(transaction=False)
            pipe.hset(demand_key(pool), gateway, msgspec.json.encode(counters).decode())
            pipe.expire(demand_key(pool), EXPIRE_S)
            await pipe.execute()
        written, written_at = copy.copy(counters), now

    await forever(
        "demand",
        write,
        WRITE_PERIOD_S,
        fails=f"demand of {pool} not told",
        logger=logger,
        outages=REDIS_FAILURES,
    )


class GrowingSum:
    """The sum over sources that each count up from their own start, and may start again."""

    def __init__(self) -> None:
        self._total = 0
        self._last: dict[str, int] = {}

    def add(self, counts: Mapping[str, int]) -> int:
        """Take what each source counts now; returns the sum, with what those now gone counted."""
        for source, counted in counts.items():
            count, last = max(0, counted), self._last.get(source, 0)
            self._total += count - last if count >= last else count
            self._last.pop(source, None)
            self._last[source] = count
        # gateways and replicas come and go; one that is heard of again soon goes on
        for source in list(self._last)[: -max(SOURCES_KEPT, len(counts))]:
            del self._last[source]
        return self._total


class DemandReader:
    """Adds up one pool's demand; a new one begins with all that the gateways there have counted.

    `redis` decodes its replies.
    """

    def __init__(
        self, redis: AsyncRedis, pool: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._clock = clock
        self._failing = False
        self._demand = Demand()
        # gateway -> what it last wrote, and when that was new
        self._heard: dict[str, tuple[str, float]] = {}
        self._sums = {name: GrowingSum() for name in _COUNTS}

    async def read(self) -> Demand:
        """As of now, or as last read while Redis does not answer."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                fields = cast(Awaitable[dict[str, str]], self._redis.hgetall(self._key))
                self._take(await fields)
                await self._forget()
            self._failing = False
        except REDIS_FAILURES as error:
            if not self._failing:
                logger.warning("demand of %s not read: %s", self._pool, error)
            self._failing = True
        return self._demand

    @property
    def _key(self) -> str:
        return demand_key(self._pool)

    def _take(self, fields: dict[str, str]) -> None:
        now = self._clock()
        for gateway, text in fields.items():
            if gateway not in self._heard or self._heard[gateway][0] != text:
                self._heard[gateway] = (text, now)
        told = {
            gateway: counters
            for gateway, (text, _) in self._heard.items()
            if (counters := _readable(text)) is not None
        }
        present = [told[gateway] for gateway in told.keys() - self._gone()]
        sums = {
            name: total.add({gateway: getattr(of, name) for gateway, of in told.items()})
            for name, total in self._sums.items()
        }
        self._demand = Demand(
            **sums,
            waiting=sum(max(0, of.waiting) for of in present),
            queued_tokens=sum(max(0, of.queued_tokens) for of in present),
            told_at=max((at for _, at in self._heard.values()), default=self._demand.told_at),
        )

    def _gone(self) -> set[str]:
        now = self._clock()
        return {gateway for gateway, (_, at) in self._heard.items() if now - at > FORGET_S}

    async def _forget(self) -> None:
        """First in Redis: what is still there would look new again."""
        if gone := self._gone():
            await self._redis.hdel(self._key, *gone)
            for gateway in gone:
                del self._heard[gateway]


def _readable(text: str) -> DemandCounters | None:
    """None for what a gateway of another release writes."""
    try:
        return msgspec.json.decode(text, type=DemandCounters)
    except msgspec.MsgspecError:
        return None
