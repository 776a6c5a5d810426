"""Why a request went where it went: kept in Redis for a while, for any gateway to tell.

    requests:<tenant>:<minute>       hash of a minute's: request id -> JSON, which
                                     zlib compresses where it is above PLAIN_BYTES
    decisions:<tenant>               list of the last DECISIONS, newest first
    decisions                        every tenant's; only where somebody may see them

Written in the background, after the answer, some at a time: a Redis that is slow or gone costs
explanations (they are dropped and counted), never a request. No prompt and no token id is in one.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast
from urllib.parse import quote

import msgspec

from common.loops import forever
from deployments.gateway.errors import ApiError
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
# That of a few candidates: compressing it would take longer than all else about it.
PLAIN_BYTES = 4096

# What all gateways of a fleet may write a second: at most 46 MB are kept by minutes, of the 256 MB
# that the embedded Redis has, which would else forget the prefix index for them. Lists hold the
# last of each tenant that asked within the hour once more.
BYTES_PER_S = 256_000
BURST_S = 10.0

# What is told of a candidate to tenants that are no operators.
_OF_ITS_OWN = ("replica_id", "cached_tokens", "confirmed_tokens", "synced")

# Tenant, request id, explanation.
_Kept = tuple[str, str, Mapping[str, Any]]


class Explanations:
    """The explanations of a fleet's requests. `redis` has `decode_responses` off.

    `for_operators`, to be set: every tenant's are kept in one list as well.
    """

    def __init__(self, redis: AsyncRedis, fleet: str, for_operators: bool = False) -> None:
        self._redis = redis
        self.for_operators = for_operators
        self._fleet = fleet
        self._waiting: asyncio.Queue[_Kept] = asyncio.Queue(WAITING_AT_MOST)
        self._room = _Room()
        self.dropped = 0

    def share(self, gateways: int) -> None:
        """So many gateway processes keep explanations in the same Redis."""
        self._room.bytes_per_s = BYTES_PER_S / max(1, gateways)

    def keep(self, tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        """Keep an explanation, that nobody changes any more; never waits."""
        try:
            self._waiting.put_nowait((tenant, request_id, explanation))
        except asyncio.QueueFull:
            self.dropped += 1

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
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            values: list[bytes | None] = await pipe.execute()
        value = next((value for value in values if value is not None), None)
        if value is None:
            return None
        found: dict[str, Any] = msgspec.json.decode(_unpacked(value))
        return found if loads else _of_its_own(found)

    async def latest(
        self, tenant: str | None, limit: int = DECISIONS, loads: bool = False
    ) -> bytes:
        """A tenant's last explanations (None: everybody's), newest first, as a JSON list.

        Raises one of REDIS_FAILURES. `loads`: as `find`.
        """
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            ask: Any = self._redis.lrange(self._list(tenant), 0, limit - 1)
            values = cast("list[bytes]", await ask)
        # with many candidates they are megabytes: those milliseconds would be everybody's
        return await asyncio.to_thread(_joined, values, loads)

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
        try:
            if self._waiting.qsize() < BATCH:
                await asyncio.sleep(GATHER_S)
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            async with asyncio.timeout(REDIS_TIMEOUT_S):
                await self._write(batch)
        except BaseException:
            self.dropped += len(batch)
            raise

    async def _write(self, batch: Sequence[_Kept]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        lists: defaultdict[str, list[bytes]] = defaultdict(list)
        hashes: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
        minute = _minute()
        for tenant, request_id, explanation in batch:
            if not self._room.has_room_for(explanation):
                self.dropped += 1
                continue
            value = _packed(explanation)
            self._room.take(len(value))
            hashes[self._minute_of(tenant, minute)][request_id] = value
            lists[self._list(tenant)].append(value)
            if self.for_operators:
                lists[self._list(None)].append(value)
        for name, of_a_minute in hashes.items():
            pipe.hset(name, mapping=of_a_minute)  # type: ignore[arg-type]  # invariant in redis-py
            pipe.expire(name, EXPLANATION_TTL_S)
        for name, values in lists.items():
            pipe.lpush(name, *values)
            pipe.ltrim(name, 0, DECISIONS - 1)
            pipe.expire(name, DECISIONS_TTL_S)
        await pipe.execute()

    def _minute_of(self, tenant: str, minute: int) -> str:
        # a tenant's name may hold the colon that ends it
        return redis_keys.key(self._fleet, f"requests:{_quoted(tenant)}:{minute}")

    def _list(self, tenant: str | None) -> str:
        whose = "" if tenant is None else f":{_quoted(tenant)}"
        return redis_keys.key(self._fleet, f"decisions{whose}")


class _Room:
    """What may be written now. Refused requests cost a client nothing, so there may be many: they
    leave half of it to the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = float(BYTES_PER_S)
        self._clock = clock
        self._filled_at = clock()
        self._bytes = self.bytes_per_s * BURST_S

    def has_room_for(self, explanation: Mapping[str, Any]) -> bool:
        now, most = self._clock(), self.bytes_per_s * BURST_S
        self._bytes = min(most, self._bytes + (now - self._filled_at) * self.bytes_per_s)
        self._filled_at = now
        refused = explanation.get("admission", {}).get("verdict") == "refused"
        return self._bytes > (most / 2 if refused else 0.0)

    def take(self, size_bytes: int) -> None:
        self._bytes -= size_bytes


@lru_cache(1024)
def _quoted(tenant: str) -> str:
    return quote(tenant, safe="")


def _minute() -> int:
    return int(time.time()) // MINUTE_S


def _packed(explanation: Mapping[str, Any]) -> bytes:
    value = msgspec.json.encode(explanation)
    return value if len(value) <= PLAIN_BYTES else zlib.compress(value, 1)


def _unpacked(value: bytes) -> bytes:
    # what zlib makes begins otherwise
    return value if value.startswith(b"{") else zlib.decompress(value)


def _joined(values: Sequence[bytes], loads: bool) -> bytes:
    if loads:
        return b"[" + b",".join(map(_unpacked, values)) + b"]"
    return msgspec.json.encode(
        [_of_its_own(msgspec.json.decode(_unpacked(value))) for value in values]
    )


def _of_its_own(explanation: dict[str, Any]) -> dict[str, Any]:
    """Without addresses, and without what other tenants keep the candidates busy with."""
    candidates = explanation.get("candidates", ())
    own = [{name: of.get(name) for name in _OF_ITS_OWN} for of in candidates]
    # a shadow's prediction and regret are what others keep its choice busy with
    return {**explanation, "candidates": own, "shadow": None} if candidates else explanation


def decisions_of(asked: str | None) -> int:
    """How many decisions are asked for. Raises ApiError 400."""
    if asked is None:
        return DECISIONS
    limit = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    if not 1 <= limit <= DECISIONS:
        message = (
            f"'limit' is {asked[:100]!r}, but it must be a whole number from 1 to {DECISIONS}."
        )
        raise ApiError(400, message, code="invalid_limit", param="limit")
    return limit
