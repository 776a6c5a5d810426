"""Rejects requests that lost every engine they ran on: for 3 minutes, at every gateway.

    key     value                                              lifetime
    fatal   sorted set: digest of a request, or a loss of     FATAL_REQUEST_S after the last
            `likely_causes` -> when it ends (Unix seconds)

A request that kills its engine must not kill the whole pool, however often a client sends it. If
several requests lose their engine together, any of them may be the cause. So each gets 503, but
only for minutes.

A client may also change a byte each time. So a tenant with such requests at two different times is
a suspect meanwhile. A suspect's request that loses its engine is not retried on another. Each such
request can cost one engine; it is rejected only after its second loss.

A request without a token whose replica ran out of memory is not tried again at all, and is rejected
like the others. The replica's watchdog reports the cause through Redis
(`deployments.engine.memory_deaths`). A tenant whose requests are the likely cause of deaths
(`likely_causes`) gets one request at a time meanwhile, at every gateway.

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
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, cast

from common.loops import forever
from deployments.gateway.api.limits import FATAL_REQUEST_S
from deployments.gateway.api.load_codes import ENGINE_OUT_OF_MEMORY, ENGINES_LOST
from deployments.gateway.checks.likely_causes import Loss, LossKind, is_likely_cause
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request import EngineRequest
from router.board.replica_death import OUT_OF_MEMORY, death_key
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.signature import Signer, opened_bytes

logger = logging.getLogger("ray.serve")

PERIOD_S = 1.0
# Digests and losses of a fleet; the latest ones stay.
MOST = 1000
TOGETHER_S = 5.0
# Requests of a tenant that are remembered for a replica: more change no decision.
MOST_NEARBY = 2
# A watchdog reports why its replica ended within this time.
CAUSE_WITHIN_S, CAUSE_PERIOD_S = 0.6, 0.05
_OWNER, _NAME = 8, 8
_DIGEST, _LOSS = _OWNER + 16, _OWNER + 1 + 2 * _NAME


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
        kept_s: int = FATAL_REQUEST_S,
        together_s: float = TOGETHER_S,
    ) -> None:
        self._kept_s = kept_s
        self._together_s = together_s
        self._redis = redis
        self._fleet = fleet
        self._signer = Signer(secret)
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

    def fate_of(self, request: EngineRequest, retries: int) -> RequestFate:
        """Return what records the engines that a request with these `retries` loses."""
        return RequestFate(self, request, retries)

    def is_held(self, tenant: str) -> bool:
        """Return whether the tenant gets one request at a time, because its requests are the likely
        cause of engines' deaths."""
        if not self._until:
            return False
        now = asyncio.get_running_loop().time()
        losses = [
            _loss(entry, until)
            for entry, until in self._until.items()
            if len(entry) == _LOSS and until > now
        ]
        return is_likely_cause(self._owner(tenant), losses, self._together_s)

    def lost(self, request: EngineRequest, replica_id: str, kind: LossKind) -> None:
        """Record that a replica was lost with this request in it."""
        digest, replica = self._digest(request), _name(replica_id)
        owner, name = digest[:_OWNER], digest[_OWNER:][:_NAME]
        if kind is LossKind.NEARBY:
            start = owner + kind.value + replica
            if sum(entry.startswith(start) for entry in self._until) >= MOST_NEARBY:
                return
        self._reject(owner + kind.value + replica + name)

    async def ran_out_of_memory(self, replica_id: str) -> bool:
        """Return whether a replica that was lost ran out of memory, as its watchdog reports.

        Without a report within CAUSE_WITHIN_S, or without Redis, it counts as another cause.
        """
        key = death_key(self._fleet, replica_id)
        try:
            async with asyncio.timeout(CAUSE_WITHIN_S):
                while (cause := await self._redis.get(key)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(CAUSE_PERIOD_S)
        except REDIS_FAILURES:
            return False
        return opened_bytes(self._signer, key, cast(bytes, cause)) == OUT_OF_MEMORY

    def out_of_memory(self, request: EngineRequest) -> ApiError:
        """Reject the request from now on, because its replica ran out of memory. Return the error
        for its client."""
        self._reject(self._digest(request))
        return _out_of_memory(self._kept_s)

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
        self._reject(digest)
        return _refusal(self._kept_s)

    def _reject(self, entry: bytes) -> None:
        self._remember(entry, self._kept_s)
        self._unreported[entry] = time.time() + self._kept_s

    def _is_suspect(self, tenant: str) -> bool:
        """Return whether the tenant's rejected requests were lost at two different times."""
        if len(self._until) < 2:
            return False
        owner, now = self._owner(tenant), asyncio.get_running_loop().time()
        ends = [
            until
            for digest, until in self._until.items()
            if len(digest) == _DIGEST and digest.startswith(owner) and until > now
        ]
        return bool(ends) and max(ends) - min(ends) > self._together_s

    async def run(self) -> None:
        """Exchange digests with other gateways until cancelled."""
        await forever(
            "fatal_requests",
            self.exchange,
            PERIOD_S,
            fails="failed to share the requests that lost their engines",
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


class RequestFate:
    """What happens to one request that loses engines."""

    def __init__(self, known: FatalRequests, request: EngineRequest, retries: int) -> None:
        self._known = known
        self._request = request
        self._retries = retries

    async def ran_out_of_memory(self, replica_id: str) -> bool:
        """As `FatalRequests.ran_out_of_memory`."""
        return await self._known.ran_out_of_memory(replica_id)

    def lost(self, replica_id: str) -> None:
        """Record that a replica was lost, after which the request may continue elsewhere."""
        self._known.lost(self._request, replica_id, LossKind.NEARBY)

    def out_of_memory(self, replica_id: str) -> ApiError:
        """Record that the request ends because this replica ran out of memory. Return the error for
        its client."""
        self._known.lost(self._request, replica_id, LossKind.MEMORY)
        return self._known.out_of_memory(self._request)

    def fatal(self, replica_ids: Iterable[str]) -> ApiError:
        """Record that the request lost all of its engines, on these replicas. Return the error for
        its client."""
        for replica_id in replica_ids:
            self._known.lost(self._request, replica_id, LossKind.FATAL)
        return self._known.add(self._request, self._retries)


def _name(replica_id: str) -> bytes:
    return blake2b(replica_id.encode(), digest_size=_NAME).digest()


def _loss(entry: bytes, until: float) -> Loss:
    kind, names = entry[_OWNER : _OWNER + 1], entry[_OWNER + 1 :]
    return Loss(entry[:_OWNER], LossKind(kind), names[:_NAME], names[_NAME:], until)


def _out_of_memory(left_s: int) -> ApiError:
    message = (
        "A replica ran out of memory while it ran this request. The gateway does not retry the"
        " request, because it could crash another replica. Identical requests are rejected for"
        f" {left_s} s. Make the request smaller, or send it again after that."
    )
    return ApiError(ENGINE_OUT_OF_MEMORY, message, retry_after=left_s)


# What a client can change about a request that may have ended its engines.
_CHANGES = (
    "For example, send fewer or smaller images, a shorter prompt, a lower 'max_tokens' or 'n', or"
    " a simpler schema or grammar for the answer."
)


def _suspected() -> ApiError:
    message = (
        "The engine died while it ran this request. The gateway does not retry the request, because"
        " several engines died recently while they ran requests of this tenant. If this request may"
        f" be the cause, change it first. {_CHANGES}"
    )
    return ApiError(ENGINES_LOST._replace(retry="Retry-After"), message, retry_after=10)


def _refusal(left_s: int) -> ApiError:
    message = (
        "Every engine that ran this request was lost, so identical requests are rejected for"
        f" {left_s} s. The request may be the cause, so change it, or wait. {_CHANGES}"
    )
    return ApiError(ENGINES_LOST, message, retry_after=left_s)
