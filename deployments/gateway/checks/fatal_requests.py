"""Requests that every engine they were given was lost with: refused for minutes, by every gateway.

    key     value                                              lifetime
    fatal   sorted set: digest -> when its refusal ends (Unix   KEPT_S after the last
            seconds)

A request that kills its engine must not take the pool along, however often it is sent again. Of
the requests that were lost together any may have done it, so each is 503, and for minutes only.

A client may also change a byte each time. So a tenant with such requests at two different moments
is a suspect for as long: a request of it that loses its engine is given to no other. That costs
one engine each, and the request is not refused unless it is lost a second time.

A digest names the tenant, and its path and body, by hashes keyed with the fleet's secret: no
reader of Redis can test a prompt against it. Gateways follow the set in the background; without
Redis each gateway knows only its own requests. Nothing here raises anything except the refusal.
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

# As long as a pool needs to have its engines back.
KEPT_S = 180
PERIOD_S = 1.0
# Of a fleet; the latest stay.
MOST = 1000
TOGETHER_S = 5.0


class FatalRequests:
    """Of one gateway. `redis` has `decode_responses` off.

    It refuses a request for `kept_s`. Requests that were lost within `together_s` may have been
    lost with one another.
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
        # digest -> until when, on the loop's clock
        self._until: OrderedDict[bytes, float] = OrderedDict()
        self._untold: dict[bytes, float] = {}
        # digests of suspects' requests that have cost one engine, the latest last
        self._lost_once: OrderedDict[bytes, None] = OrderedDict()
        # what Redis said last
        self._heard: dict[bytes, float] = {}

    def check(self, request: EngineRequest) -> None:
        """Raises ApiError 503 for one that is refused."""
        if not self._until:
            return
        left_s = self._until.get(self._digest(request), 0.0) - asyncio.get_running_loop().time()
        if left_s > 0:
            raise _refusal(math.ceil(left_s))

    def retries(self, tenant: str, retries: int) -> int:
        """How many further engines a request of the tenant may have, of `retries`."""
        return 0 if self._is_suspect(tenant) else retries

    def add(self, request: EngineRequest, retries: int) -> ApiError:
        """A request was lost with its engine, and with those of its `retries`.

        Returns the error for its client. A suspect's request is refused from its second loss on.
        """
        digest = self._digest(request)
        if not retries and self._is_suspect(request.tenant) and digest not in self._lost_once:
            self._lost_once[digest] = None
            if len(self._lost_once) > MOST:
                self._lost_once.popitem(last=False)
            return _suspected()
        self._lost_once.pop(digest, None)
        self._remember(digest, self._kept_s)
        self._untold[digest] = time.time() + self._kept_s
        return _refusal(self._kept_s)

    def _is_suspect(self, tenant: str) -> bool:
        """Whether requests of it were lost at two moments, of those still refused."""
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
        """Keep in touch with the other gateways until cancelled."""
        await forever(
            "fatal_requests",
            self.exchange,
            PERIOD_S,
            fails="other gateways do not hear of requests that engines were lost with",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def exchange(self) -> None:
        """Report what was lost here to other gateways, and read what they reported.

        Raises one of REDIS_FAILURES.
        """
        untold = {digest: until for digest, until in self._untold.items() if until > time.time()}
        pipe = self._redis.pipeline(transaction=False)
        if untold:
            pipe.zadd(self._key, cast(Any, untold))
            pipe.zremrangebyrank(self._key, 0, -MOST - 1)
            pipe.expire(self._key, self._kept_s)
        pipe.zrange(self._key, 0, -1, withscores=True)
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            *_, found = await pipe.execute()
        self._untold = {
            digest: self._untold[digest] for digest in self._untold.keys() - untold.keys()
        }
        # clocks differ, and are set: none is refused longer than kept_s after it was heard of
        now, before = time.time(), self._heard
        self._heard = dict(found)
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
        "The engine that worked on this request was lost. Several engines were lost with requests"
        " of this tenant lately, so the request is given to no other. Send it again if it is"
        " unlike those."
    )
    return ApiError(503, message, code="engines_lost", retry_after=10)


def _refusal(left_s: int) -> ApiError:
    message = (
        "One after the other, every engine that worked on this request was lost, so it is given to"
        f" no other for {left_s} s. Change it, or send it again after that."
    )
    return ApiError(503, message, code="engines_lost", retry_after=left_s, headers=NO_RETRY)
