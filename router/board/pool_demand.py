"""The demand of a pool, as its gateways count it, for the autoscaler; and the autoscaler's
decision.

    key       value                                              lifetime
    demand    hash: gateway -> `DemandCounters`, JSON, signed;   60 s after the
              written every 0.5 s where they changed,            last writing
              otherwise every second; not of a pool
              whose replicas are a fixed number
    decided   `Decided`, JSON, signed; written every 0.5 s       10 s

Each gateway counts from its own start. The reader adds up the growth of each count, so the sums
never fall: not when a gateway restarts, leaves, or reports again after an outage. Counts that the
fleet did not sign, or that are older than others of the same gateway, are ignored. Nothing here
raises or makes a request wait; while Redis is unavailable `told_at` grows old.
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
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.signature import Signer, count_forged, opened, signed

logger = logging.getLogger(__name__)

WRITE_PERIOD_S = 0.5
UNCHANGED_PERIOD_S = 1.0
EXPIRE_S = 60
DECIDED_EXPIRE_S = 10
# A gateway that has not written for this long is dead, and its requests with it.
FORGET_S = 10.0
SOURCES_KEPT = 1000

_COUNTS = ("arrived", "prompt_tokens", "uncached_tokens", "rejected", "overflowed")


class DemandCounters(msgspec.Struct):
    """One gateway's counts since its start, and its queue now: requests, prompt tokens.

    The fields are those of `Demand`; the code that serves requests adds to them. `sequence` belongs
    to `tell`.
    """

    sequence: int = 0
    arrived: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    rejected: int = 0
    overflowed: int = 0
    waiting: int = 0
    queued_tokens: int = 0


@dataclass(frozen=True)
class Demand:
    """A pool's demand over all its gateways; the first five only ever grow.

    `arrived` requests arrived for the pool with `prompt_tokens`, of which `uncached_tokens` had to
    be computed; `rejected` and `overflowed` are among them. `waiting` requests are queued in
    gateways now, with `queued_tokens` to compute. `told_at`: the last report of a gateway, on the
    reader's clock; None: never.
    """

    arrived: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0
    rejected: int = 0
    overflowed: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    told_at: float | None = None


class Decided(msgspec.Struct, frozen=True):
    """The autoscaler's last decision: `demand` active replicas, of `target` to run.

    `arrivals` per second arrived lately, `forecast` are expected by the time a new replica could
    serve. Counted from the start of the autoscaler's process: `failures`, unexpected errors;
    `forged`, values in Redis that it ignored because the fleet did not sign them.
    """

    demand: int
    target: int
    because: str
    arrivals: float = 0.0
    forecast: float | None = None
    failures: int = 0
    forged: int = 0


_decided = msgspec.json.Decoder(Decided).decode


def decided_key(pool: str) -> str:
    return redis_keys.key(pool, "decided")


async def tell_decided(
    redis: AsyncRedis, pool: str, decided: Decided, signer: Signer | None
) -> None:
    """Publish the decision for the gateways. Raises one of REDIS_FAILURES."""
    key = decided_key(pool)
    text = signed(signer, key, msgspec.json.encode(decided).decode())
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        await redis.set(key, text, ex=DECIDED_EXPIRE_S)


async def read_decided(redis: AsyncRedis, pool: str, signer: Signer | None) -> Decided | None:
    """Return the decision; None: no autoscaler of the fleet decides. Raises one of
    REDIS_FAILURES."""
    key = decided_key(pool)
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        # MGET: a value of another type counts as missing
        [found] = await cast(Awaitable[list[str | None]], redis.mget([key]))
    text = None if found is None else opened(signer, key, found)
    try:
        return None if text is None else _decided(text)
    except (msgspec.MsgspecError, ValueError):  # written by hand
        return None


def demand_key(pool: str) -> str:
    return redis_keys.key(pool, "demand")


def _signed_as(pool: str, gateway: str) -> str:
    """Return the name that is signed with one gateway's counters."""
    return f"{demand_key(pool)}:{gateway}"


async def tell(
    redis: AsyncRedis,
    pool: str,
    gateway: str,
    counters: DemandCounters,
    *,
    signer: Signer | None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Write one gateway's counters until cancelled, while `is_wanted`."""
    key = demand_key(pool)
    written, written_at = DemandCounters(sequence=-1), float("-inf")

    async def write() -> None:
        nonlocal written, written_at
        now = asyncio.get_running_loop().time()
        # with half a period of slack: a loop's steps are not at exact times
        is_due = now - written_at > UNCHANGED_PERIOD_S - WRITE_PERIOD_S / 2
        if not is_wanted() or (counters == written and not is_due):
            return
        counters.sequence += 1
        text = msgspec.json.encode(counters).decode()
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            pipe = redis.pipeline(transaction=False)
            pipe.hset(key, gateway, signed(signer, _signed_as(pool, gateway), text))
            pipe.expire(key, EXPIRE_S)
            await pipe.execute()
        written, written_at = copy.copy(counters), now

    await forever(
        "demand",
        write,
        WRITE_PERIOD_S,
        fails=f"failed to publish the demand of {pool}",
        logger=logger,
        outages=REDIS_FAILURES,
    )


class GrowingSum:
    """The sum over sources that each count from their own start, and may restart."""

    def __init__(self) -> None:
        self._total = 0
        self._last: dict[str, int] = {}

    def add(self, counts: Mapping[str, int]) -> int:
        """Update with the current count of each source. Return the sum, including sources that are
        gone."""
        for source, counted in counts.items():
            count, last = max(0, counted), self._last.get(source, 0)
            self._total += count - last if count >= last else count
            self._last.pop(source, None)
            self._last[source] = count
        # gateways and replicas come and go; a source that returns soon continues its count
        for source in list(self._last)[: -max(SOURCES_KEPT, len(counts))]:
            del self._last[source]
        return self._total


@dataclass(frozen=True)
class _Heard:
    """A gateway's last report, and when it was new."""

    text: str
    counters: DemandCounters
    at: float


class DemandReader:
    """Adds up one pool's demand; a new reader starts with all counts of the current gateways.

    `redis` decodes its replies.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        signer: Signer | None,
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._clock = clock
        self._signer = signer
        self._failing = False
        self._demand = Demand()
        self._heard: dict[str, _Heard] = {}
        self._sequences: dict[str, int] = {}  # gateway -> its highest, also of dead gateways
        self._sums = {name: GrowingSum() for name in _COUNTS}

    async def read(self) -> Demand:
        """Return the current demand, or the last one while Redis does not answer."""
        try:
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                fields = cast(Awaitable[dict[str, str]], self._redis.hgetall(self._key))
                self._take(await fields)
                await self._forget()
            self._failing = False
        except REDIS_FAILURES as error:
            if not self._failing:
                logger.warning("failed to read the demand of %s: %s", self._pool, error)
            self._failing = True
        return self._demand

    @property
    def _key(self) -> str:
        return demand_key(self._pool)

    def _take(self, fields: dict[str, str]) -> None:
        now = self._clock()
        for gateway, text in fields.items():
            if gateway in self._heard and self._heard[gateway].text == text:
                continue
            if (counters := self._genuine(gateway, text)) is not None:
                self._heard[gateway] = _Heard(text, counters, now)
        gone = self._gone()
        present = [of.counters for gateway, of in self._heard.items() if gateway not in gone]
        sums = {
            name: total.add({by: getattr(of.counters, name) for by, of in self._heard.items()})
            for name, total in self._sums.items()
        }
        self._demand = Demand(
            **sums,
            waiting=sum(max(0, of.waiting) for of in present),
            queued_tokens=sum(max(0, of.queued_tokens) for of in present),
            told_at=max((of.at for of in self._heard.values()), default=self._demand.told_at),
        )

    def _genuine(self, gateway: str, text: str) -> DemandCounters | None:
        """Return the gateway's counters, if they are not older than those read before."""
        signature = _signed_as(self._pool, gateway)
        value = opened(self._signer, signature, text)
        if value is None or (counters := _readable(value)) is None:
            return None
        last = self._sequences.pop(gateway, 0)
        self._sequences[gateway] = max(last, counters.sequence)
        for source in list(self._sequences)[:-SOURCES_KEPT]:
            del self._sequences[source]
        if counters.sequence < last:
            count_forged(signature)
            return None
        return counters

    def _gone(self) -> set[str]:
        now = self._clock()
        return {gateway for gateway, of in self._heard.items() if now - of.at > FORGET_S}

    async def _forget(self) -> None:
        """Delete the entries, first in Redis: the remaining ones would look new again."""
        if gone := self._gone():
            await self._redis.hdel(self._key, *gone)
            for gateway in gone:
                del self._heard[gateway]


def _readable(text: str) -> DemandCounters | None:
    """Return the counters; None for a text that gateways do not write."""
    try:
        return msgspec.json.decode(text, type=DemandCounters)
    except (msgspec.MsgspecError, ValueError):
        return None
