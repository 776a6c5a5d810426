"""Stores explanations of requests in Redis for some minutes: their placement and how they ended.

    requests:<tenant>:<minute>       hash of one minute: request id -> JSON, which
                                     `packed_explanation` compresses if it is long
    decisions:<tenant>               list of the last DECISIONS, newest first
    failures:<tenant>                the same for failed requests
    decisions, failures              the same for all tenants; only if the fleet has operators

An explanation is written when its request has ended, with any outcome. If a request takes longer
than UNDER_WAY_S, the hash has it earlier, with a null outcome.

A background task writes explanations in batches. If Redis is slow or unavailable, explanations are
dropped and counted; requests are not affected. Explanations have no prompts and no token ids.
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
from deployments.gateway.api.limits import DECISIONS, EXPLANATION_TTL_S, UNDER_WAY_S
from deployments.gateway.api.request_codes import INVALID_LIMIT, INVALID_VALUE
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.record.explanation import explanation_of
from deployments.gateway.record.explanation_queue import ExplanationQueue, Kept, Kind, WritingRate
from deployments.gateway.record.packed_explanation import joined, of_its_own, packed, unpacked
from observability.traces.request_record import AnswerEnd, RequestRecord
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

# An explanation ends at most this long after EXPLANATION_TTL_S.
MINUTE_S = 60
# The lifetime of a list after its last write, such as that of a removed fleet or tenant.
DECISIONS_TTL_S = 3600
WAITING_AT_MOST = 1024
BATCH = 64
REDIS_TIMEOUT_S = 1.0
# The time to collect a batch, which reduces the cost of an explanation to a third.
GATHER_S = 0.1

# The rate of all gateways of a fleet. It limits the hashes to 46 MB of the embedded Redis's 256 MB.
# Without a limit, Redis would evict the prefix index. Lists have second copies of the last
# explanations, for each tenant with a request in the last hour.
BYTES_PER_S = 256_000
BURST_S = 10.0


class Explanations:
    """The explanations of a fleet's requests. `redis` has `decode_responses` off.

    Callers may set `for_operators`: whether lists of all tenants are written too. `under_way_s`: a
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
        # (pool, kind) -> explanations dropped since the last written one
        self._not_written: Counter[tuple[str | None, Kind]] = Counter()
        self.dropped = 0

    def share(self, gateways: int) -> None:
        """Set the number of gateway processes, which share BYTES_PER_S."""
        self._rate.bytes_per_s = BYTES_PER_S / max(1, gateways)

    def begun(self, record: RequestRecord) -> None:
        """Explain the request before its end if it takes longer than `under_way_s`."""
        self._look_again(record, self.under_way_s)

    def ended(self, record: RequestRecord, end: AnswerEnd) -> None:
        """Store the explanation of a request that has ended."""
        if (timer := self._under_way.pop(record, None)) is not None:
            timer.cancel()
        self.keep(
            record.facts.tenant,
            record.facts.request_id,
            explanation_of(record, end.duration_s, end),
        )

    def keep(self, tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        """Queue an explanation, which must not change any more. Never waits."""
        if (dropped := self._waiting.put(Kept(tenant, request_id, explanation))) is not None:
            self._drop(dropped)

    async def written(self) -> None:
        """Wait until all are written, up to `redis_timeout_s`, and only while writes succeed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.redis_timeout_s):
                while not self._failing and (len(self._waiting) or self._writing):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    async def find(
        self, tenant: str, request_id: str, loads: bool = False, others: Iterable[str] = ()
    ) -> dict[str, Any] | None:
        """Return the explanation of a request; None: unknown. Raises one of REDIS_FAILURES.

        `others`: further tenants whose request it may be. `loads`: include the candidates' loads,
        which are for operators.
        """
        pipe = self._redis.pipeline(transaction=False)
        this = _minute()
        # one minute more, because the writing gateway's clock may be ahead
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
        """Return a tenant's last explanations as a JSON list, newest first. Tenant None: of all.

        `loads`: as in `find`. `failed`: only of requests that failed, missed their deadline or lost
        their client. Raises one of REDIS_FAILURES.
        """
        name = self._list("failures" if failed else "decisions", tenant)
        async with asyncio.timeout(self.redis_timeout_s):
            ask: Any = self._redis.lrange(name, 0, limit - 1)
            values = cast("list[bytes]", await ask)
        # in a thread: with many candidates they are megabytes, which would delay all requests
        return await asyncio.to_thread(joined, values, loads)

    async def run(self) -> None:
        """Write queued explanations until cancelled."""
        await forever(
            "explanations",
            self._write_some,
            fails="failed to store explanations",
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
            if explanation.get("outcome", "") is None:  # the request has not ended
                continue
            for tenant in (kept.tenant, None) if self.for_operators else (kept.tenant,):
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
        so_far_s = asyncio.get_running_loop().time() - record.arrived
        self._look_again(record, MINUTE_S)
        self.keep(record.facts.tenant, record.facts.request_id, explanation_of(record, so_far_s))

    def _minute_of(self, tenant: str, minute: int) -> str:
        # quoted: a tenant's name may contain a colon
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
    """Return the number of decisions in the query parameter `limit`. Raises ApiError 400."""
    if value is None:
        return DECISIONS
    limit = int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0
    if not 1 <= limit <= DECISIONS:
        message = (
            f"'limit' is {value[:100]!r}, but it must be a whole number from 1 to {DECISIONS}."
        )
        raise ApiError(INVALID_LIMIT, message, param="limit")
    return limit


def only_failed(value: str | None) -> bool:
    """Return whether the query parameter `only` is "failed". Raises ApiError 400."""
    if value not in (None, "failed"):
        message = f"'only' is {value[:100]!r}, but it must be 'failed'. Omit it for all decisions."
        raise ApiError(INVALID_VALUE, message, param="only")
    return value is not None
