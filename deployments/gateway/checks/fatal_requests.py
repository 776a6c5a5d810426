"""Rejects requests that lost every engine they ran on: for 3 minutes, at every gateway.

    key     value                                              lifetime
    fatal   sorted set: digest -> when its refusal ends (Unix   KEPT_S after the last
            seconds)

A request that kills its engine must not kill the whole pool, however often a client sends it. If
several requests lose their engine together, any of them may be the cause. So each gets 503, but
only for minutes.

A client may also change a byte each time. So a tenant with such requests at two different times is
a suspect meanwhile. A suspect's request that loses its engine is not retried on another. Each such
request can cost one engine; it is rejected only after its second loss.

A digest consists of hashes of the tenant, and of tenant, path and body, keyed with the fleet's
secret. Redis access does not suffice to test a prompt against it. Gateways read the set in the
background; without Redis, each knows only its own requests. Apart from the rejection, nothing here
raises an error to the request.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from hashlib import blake2b
from typing import Any, cast

from common.loops import forever
from deployments.gateway.intake.errors import NO_RETRY, ApiError
from deployments.gateway.intake.request import EngineRequest
from router import redis_keys
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.slots import REDIS_TIMEOUT_S

logger = logging.getLogger("ray.serve")

# The time that a pool needs to restart its engines.
KEPT_S = 180
PERIOD_S = 1.0
# Digests of a fleet; the latest ones stay.
MOST = 1000
TOGETHER_S = 5.0


class FatalRequests:
    """One gateway's fatal requests. `redis` has `decode_responses` off.

    It rejects a request for `kept_s` seconds. Losses within `together_s` seconds may have one
    cause.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        fleet: str,
        secret: str,
        *,
        kept_s: int = KEPT_S,
        together_s: float = TOGETHER_S,
    ) -> None:
        self._kept_s = kept_s
        self._together_s = together_s
        self._redis = redis
        self._key = redis_keys.key(fleet, "fatal")
        key = blake2b(secret.encode(), person=b"antefix fatal").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx fatal body")
        self._tenant_hash = blake2b(key=key, digest_size=8, person=b"afx fatal owner")
        # digest -> end of its rejection, in the loop's time
        self._until: OrderedDict[bytes, float] = OrderedDict()
        # not yet in Redis: digest -> end of its rejection, in Unix time
        self._unreported: dict[bytes, float] = {}
        # digests of suspects' requests that have cost one engine, the latest last
        self._lost_once: OrderedDict[bytes, None] = OrderedDict()
        # the set at the last read
        self._last_read: dict[bytes, float] = {}

    def check(self, request: EngineRequest) -> None:
        """Raises ApiError 503 for a request that is still rejected."""
        if not self._until:
            return
        left_s = self._until.get(self._digest(request), 0.0) - asyncio.get_running_loop().time()
        if left_s > 0:
            raise _refusal(math.ceil(left_s))

    def retries(self, tenant: str, retries: int) -> int:
        """Return the retries of the tenant's requests: 0 for a suspect, otherwise `retries`."""
        return 0 if self._is_suspect(tenant) else retries

    def add(self, request: EngineRequest, retries: int) -> ApiError:
        """Record a request that lost its engine, and those of its `retries`.

        Return the error for its client. A suspect's request is rejected from its second loss on.
        """
        digest = self._digest(request)
        if not retries and self._is_suspect(request.tenant) and digest not in self._lost_once:
            self._lost_once[digest] = None
            if len(self._lost_once) > MOST:
                self._lost_once.popitem(last=False)
            return _suspected()
        self._lost_once.pop(digest, None)
        self._remember(digest, self._kept_s)
        self._unreported[digest] = time.time() + self._kept_s
        return _refusal(self._kept_s)

    def _is_suspect(self, tenant: str) -> bool:
        """Return whether the tenant's rejected requests were lost at two different times."""
        if len(self._until) < 2:
            return False
        owner, now = self._owner(tenant), asyncio.get_running_loop().time()
        ends = [
            until
            for digest, until in self._until.items()
            if digest.startswith(owner) and until > now
        ]
        return bool(ends) and max(ends) - min(ends) > self._together_s

    async def run(self) -> None:
        """Exchange digests with other gateways until cancelled."""
        await forever(
            "fatal_requests",
            self.exchange,
            PERIOD_S,
            fails="gateways do not share the requests that lost their engines",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def exchange(self) -> None:
        """Report this gateway's digests to the others through Redis, and read theirs.

        Raises one of REDIS_FAILURES.
        """
        now = time.time()
        reported = {digest: until for digest, until in self._unreported.items() if until > now}
        pipe = self._redis.pipeline(transaction=False)
        if reported:
            pipe.zadd(self._key, cast(Any, reported))
            pipe.zremrangebyrank(self._key, 0, -MOST - 1)
            pipe.expire(self._key, self._kept_s)
        pipe.zrange(self._key, 0, -1, withscores=True)
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            *_, found = await pipe.execute()
        self._unreported = {
            digest: self._unreported[digest] for digest in self._unreported.keys() - reported.keys()
        }
        # clocks differ and may be set: a rejection ends at most kept_s after it was first read
        now, before = time.time(), self._last_read
        self._last_read = dict(found)
        for digest, until in found:
            if before.get(digest) != until and (left_s := min(until - now, self._kept_s)) > 0:
                self._remember(digest, left_s)
        now = asyncio.get_running_loop().time()
        for digest in [digest for digest, until in self._until.items() if until <= now]:
            del self._until[digest]

    def _remember(self, digest: bytes, left_s: float) -> None:
        self._until[digest] = asyncio.get_running_loop().time() + left_s
        if len(self._until) > MOST:
            self._until.popitem(last=False)

    def _digest(self, request: EngineRequest) -> bytes:
        hash_ = self._hash.copy()
        for part in (request.tenant.encode(), request.path.encode(), request.repeated_body):
            hash_.update(len(part).to_bytes(8, "little"))
            hash_.update(part)
        return self._owner(request.tenant) + hash_.digest()

    def _owner(self, tenant: str) -> bytes:
        hash_ = self._tenant_hash.copy()
        hash_.update(tenant.encode())
        return hash_.digest()


def _suspected() -> ApiError:
    message = (
        "The engine of this request was lost. Requests of this tenant lost several engines"
        " recently, so the gateway does not retry it. Send it again if it differs from those."
    )
    return ApiError(503, message, code="engines_lost", retry_after=10)


def _refusal(left_s: int) -> ApiError:
    message = (
        "Every engine that this request ran on was lost, so the gateway rejects it for"
        f" {left_s} s. Change it, or send it again after that."
    )
    return ApiError(503, message, code="engines_lost", retry_after=left_s, headers=NO_RETRY)
