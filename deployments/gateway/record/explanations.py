"""Why each request went where it went and how it ended: kept in Redis for a while.

    requests:<tenant>:<minute>       hash of a minute's: request id -> JSON, which
                                     `packed_explanation` compresses where it is long
    decisions:<tenant>               list of the last DECISIONS, newest first
    failures:<tenant>                the same of requests that failed
    decisions, failures              every tenant's; only where the fleet has operators

An explanation is written when its request has ended, whatever the outcome; that of a request that
takes longer than UNDER_WAY_S is in the hash before that, with a null outcome.

A background task writes them, several at a time. A Redis that is slow or unavailable costs
explanations, which are dropped and counted, never a request. No prompt and no token id is in one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

from common.loops import forever
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.record.explanation import explanation_of
from deployments.gateway.record.explanation_queue import ExplanationQueue, Kept, Kind, WritingRate
from deployments.gateway.record.packed_explanation import joined, of_its_own, packed, unpacked
from observability.request_record import RequestRecord
from router import redis_keys
from router.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

# At least so long is each to be had, and at most another MINUTE_S.
EXPLANATION_TTL_S = 120
MINUTE_S = 60
DECISIONS = 100
# A list outlives its fleet, or a tenant that is gone, by no more than this.
DECISIONS_TTL_S = 3600
WAITING_AT_MOST = 1024
BATCH = 64
REDIS_TIMEOUT_S = 1.0
# How long the first waits for others, with whom it costs a third.
GATHER_S = 0.1

# What all gateways of a fleet may write a second: at most 46 MB are kept by minutes, of the 256 MB
# that the embedded Redis has, which would otherwise evict the prefix index for them. Lists hold the
# last ones of each tenant that sent a request within the hour a second time.
BYTES_PER_S = 256_000
BURST_S = 10.0

# A request that takes longer is explained while it is under way, and again each minute.
UNDER_WAY_S = 5.0


class Explanations:
    """The explanations of a fleet's requests. `redis` has `decode_responses` off.

    `for_operators`, to be set: every tenant's are kept in one list as well. `under_way_s`: a
    request that takes longer is explained before its end.
    """

    def __init__(self, redis: AsyncRedis, fleet: str, for_operators: bool = False) -> None:
        self._redis = redis
        self.redis_timeout_s = REDIS_TIMEOUT_S
        self.under_way_s = UNDER_WAY_S
        self.for_operators = for_operators
        self._fleet = fleet
        self._waiting = ExplanationQueue(WAITING_AT_MOST)
        self._writing = self._failing = False
        self._rate = WritingRate(BYTES_PER_S, BURST_S)
        self._under_way: dict[RequestRecord, asyncio.TimerHandle] = {}
        # (pool, kind) -> how many were dropped since one was last written
        self._not_written: Counter[tuple[str | None, Kind]] = Counter()
        self.dropped = 0

    def share(self, gateways: int) -> None:
        """This many gateway processes keep explanations in the same Redis."""
        self._rate.bytes_per_s = BYTES_PER_S / max(1, gateways)

    def begun(self, record: RequestRecord) -> None:
        """Explain the request while it is under way, if it takes long."""
        self._look_again(record, self.under_way_s)

    def ended(self, record: RequestRecord) -> None:
        """Keep the explanation of a request that has ended, `record.duration_s` included."""
        if (timer := self._under_way.pop(record, None)) is not None:
            timer.cancel()
        try:
            self.keep(record.tenant, record.request_id, explanation_of(record, has_ended=True))
        finally:
            record.explain = None  # a cycle: the attempt that it belongs to has the record

    def keep(self, tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        """Keep an explanation, which must not change any more; never waits."""
        if (dropped := self._waiting.put(Kept(tenant, request_id, explanation))) is not None:
            self._drop(dropped)

    async def written(self) -> None:
        """Wait until all is written: `redis_timeout_s` at most, and while Redis takes it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.redis_timeout_s):
                while not self._failing and (len(self._waiting) or self._writing):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def find(
        self, tenant: str, request_id: str, loads: bool = False, others: Iterable[str] = ()
    ) -> dict[str, Any] | None:
        """What is known of a request of a tenant, or of one of the others. Raises one of
        REDIS_FAILURES.

        `loads`: with what keeps the candidates busy, which is for operators.
        """
        pipe = self._redis.pipeline(transaction=False)
        this = _minute()
        # the clock of the gateway that wrote it may be ahead
        for whose in (tenant, *others):
            for minute in range(this + 1, this - EXPLANATION_TTL_S // MINUTE_S - 1, -1):
                pipe.hget(self._minute_of(whose, minute), request_id)
        async with asyncio.timeout(self.redis_timeout_s):
            values: list[bytes | None] = await pipe.execute()
        readable = (unpacked(value) for value in values if value is not None)
        found = next((found for found in readable if found is not None), None)
        return found if loads or found is None else of_its_own(found)

    async def latest(
        self,
        tenant: str | None,
        limit: int = DECISIONS,
        loads: bool = False,
        failed: bool = False,
    ) -> bytes:
        """A tenant's last explanations (None: every tenant's), newest first, as a JSON list.

        Raises one of REDIS_FAILURES. `loads`: as `find`. `failed`: only of requests that failed,
        missed their deadline or lost their client.
        """
        name = self._list("failures" if failed else "decisions", tenant)
        async with asyncio.timeout(self.redis_timeout_s):
            ask: Any = self._redis.lrange(name, 0, limit - 1)
            values = cast("list[bytes]", await ask)
        # with many candidates they are megabytes: those milliseconds would be everybody's
        return await asyncio.to_thread(joined, values, loads)

    async def run(self) -> None:
        """Write what is kept, until cancelled."""
        await forever(
            "explanations",
            self._write_some,
            fails="explanations are not kept",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def _write_some(self) -> None:
        batch = [await self._waiting.get()]
        self._writing = True
        try:
            if len(self._waiting) < BATCH:
                await asyncio.sleep(GATHER_S)
            while len(batch) < BATCH and len(self._waiting):
                batch.append(self._waiting.get_now())
            async with asyncio.timeout(self.redis_timeout_s):
                await self._write(batch)
            self._failing = False
        except BaseException:
            self._failing = True
            self.dropped += len(batch)
            raise
        finally:
            self._writing = False

    async def _write(self, batch: Sequence[Kept]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        lists: defaultdict[str, list[bytes]] = defaultdict(list)
        hashes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        minute = _minute()
        for kept in batch:
            kind, explanation = kept.kind, kept.explanation
            if not self._rate.may_write(kind):
                self._drop(kept)
                continue
            if not_written := self._not_written.pop((explanation.get("pool"), kind), 0):
                explanation = {**explanation, "stands_for": not_written + 1}
            value = packed(explanation)
            self._rate.wrote(kind, len(value))
            hashes[self._minute_of(kept.tenant, minute)][kept.request_id] = value
            if explanation.get("outcome", "") is None:  # it is under way
                continue
            whose = (kept.tenant, None) if self.for_operators else (kept.tenant,)
            for tenant in whose:
                lists[self._list("decisions", tenant)].append(value)
                if kind == "failed":
                    lists[self._list("failures", tenant)].append(value)
        for name, of_a_minute in hashes.items():
            pipe.hset(name, mapping=of_a_minute)  # type: ignore[arg-type]  # invariant in redis-py
            pipe.expire(name, EXPLANATION_TTL_S)
        for name, values in lists.items():
            pipe.lpush(name, *values)
            pipe.ltrim(name, 0, DECISIONS - 1)
            pipe.expire(name, DECISIONS_TTL_S)
        await pipe.execute()

    def _drop(self, kept: Kept) -> None:
        self.dropped += 1
        if kept.explanation.get("outcome", "") is not None:
            self._not_written[kept.explanation.get("pool"), kept.kind] += 1

    def _look_again(self, record: RequestRecord, after_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._under_way[record] = loop.call_later(after_s, self._explain_under_way, record)

    def _explain_under_way(self, record: RequestRecord) -> None:
        record.duration_s = asyncio.get_running_loop().time() - record.arrived
        self._look_again(record, MINUTE_S)
        self.keep(record.tenant, record.request_id, explanation_of(record, has_ended=False))

    def _minute_of(self, tenant: str, minute: int) -> str:
        # a tenant's name may hold the colon that ends it
        return redis_keys.key(self._fleet, f"requests:{_quoted(tenant)}:{minute}")

    def _list(self, name: str, tenant: str | None) -> str:
        whose = "" if tenant is None else f":{_quoted(tenant)}"
        return redis_keys.key(self._fleet, f"{name}{whose}")


@lru_cache(1024)
def _quoted(tenant: str) -> str:
    return quote(tenant, safe="")


def _minute() -> int:
    return int(time.time()) // MINUTE_S


def decisions_of(value: str | None) -> int:
    """Return how many decisions the query `limit` asks for. Raises ApiError 400."""
    if value is None:
        return DECISIONS
    limit = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= limit <= DECISIONS:
        message = (
            f"'limit' is {value[:100]!r}, but it must be a whole number from 1 to {DECISIONS}."
        )
        raise ApiError(400, message, code="invalid_limit", param="limit")
    return limit


def only_failed(value: str | None) -> bool:
    """Return whether the query `only` asks for failed requests. Raises ApiError 400."""
    if value not in (None, "failed"):
        message = f"'only' is {value[:100]!r}, but it must be 'failed'. Omit it for all decisions."
        raise ApiError(400, message, code="invalid_value", param="only")
    return value is not None
