"""Why a request went where it went: kept in Redis for a while, for any gateway to tell.

    {afx:<fleet>}:request:<tenant>:<request id>    zlib-compressed JSON, TTL EXPLANATION_TTL_S

Written in the background, after the answer: a Redis that is slow or gone costs explanations
(they are dropped and counted), never a request. No prompt and no token id is in one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from router.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

EXPLANATION_TTL_S = 120
WAITING_AT_MOST = 1024
BATCH = 64
REDIS_TIMEOUT_S = 1.0


class Explanations:
    """The explanations of a fleet's requests. `redis` has `decode_responses` off."""

    def __init__(self, redis: AsyncRedis, fleet: str) -> None:
        self._redis = redis
        self._prefix = f"{{afx:{fleet}}}:request:"
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(WAITING_AT_MOST)
        self.dropped = 0

    def keep(self, tenant: str, request_id: str, explanation: Mapping[str, Any]) -> None:
        """Keep an explanation; never waits."""
        try:
            value = zlib.compress(json.dumps(explanation).encode(), 1)
            self._waiting.put_nowait((self._key(tenant, request_id), value))
        except asyncio.QueueFull:
            self.dropped += 1

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """What is known of a tenant's request. Raises one of REDIS_FAILURES."""
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            value = cast("bytes | None", await self._redis.get(self._key(tenant, request_id)))
        if value is None:
            return None
        found: dict[str, Any] = json.loads(zlib.decompress(value))
        return found

    async def run(self) -> None:
        """Write what is kept, until cancelled."""
        failing = False
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                async with asyncio.timeout(REDIS_TIMEOUT_S):
                    pipe = self._redis.pipeline(transaction=False)
                    for key, value in batch:
                        pipe.set(key, value, ex=EXPLANATION_TTL_S)
                    await pipe.execute()
                failing = False
            except REDIS_FAILURES as error:
                if not failing:
                    logger.warning("explanations are not kept: %s", error)
                failing = True
                self.dropped += len(batch)

    def _key(self, tenant: str, request_id: str) -> str:
        # a tenant's name may hold the colon that ends it
        return f"{self._prefix}{quote(tenant, safe='')}:{request_id}"
