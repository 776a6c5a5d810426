"""Detects gateways of releases whose Redis keys have another schema, and logs them.

    schemas   hash: schema -> Unix time in seconds of its last use by a gateway; kept for a day

Every release reads and writes this key in the same format, but shares no other key with releases of
another schema. The key is not signed, because its only effect is a line in the log. Nothing here
raises an error or delays a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from common.loops import forever
from router.index.slots import REDIS_TIMEOUT_S
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger("ray.serve")

PERIOD_S = 60.0
# A schema is in use until its gateways have missed two periods.
IN_USE_S = 180.0
EXPIRE_S = 86400


def others_in_use(found: Mapping[str, str], own: int, now: float) -> dict[int, float]:
    """Return the other schemas in use, with the seconds since their last use.

    Invalid fields and values are ignored. `now` is Unix time.
    """
    ages = {
        int(schema): max(0.0, now - int(used))
        for schema, used in found.items()
        if _is_number(schema) and _is_number(used)
    }
    return {schema: age for schema, age in ages.items() if schema != own and age <= IN_USE_S}


class SchemaWatch:
    """Reports one gateway's schema, and logs each other schema when it appears.

    `redis` has `decode_responses`. `clock` returns Unix time in seconds.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        fleet: str,
        clock: Callable[[], float],
        schema: int = redis_keys.SCHEMA,
    ) -> None:
        self._redis = redis
        self._key = redis_keys.schemas_key(fleet)
        self._fleet = fleet
        self._clock = clock
        self._schema = schema
        self._known: set[int] = set()

    async def run(self) -> None:
        """Look every PERIOD_S seconds until cancelled."""
        await forever(
            "schemas",
            self.look,
            PERIOD_S,
            fails="failed to look for other releases in this fleet's Redis",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def look(self) -> None:
        """Report the own schema, and log new other ones. Raises one of REDIS_FAILURES."""
        now = self._clock()
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._key)
        pipe.hset(self._key, str(self._schema), str(int(now)))
        pipe.expire(self._key, EXPIRE_S)
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            found, *_ = await pipe.execute()
        others = others_in_use(found, self._schema, now)
        for schema in sorted(others.keys() - self._known):
            logger.warning(
                "Another release of fleet %s used keys of schema %d in this Redis %.0f s ago."
                " This release uses schema %d, and they share no keys. During an upgrade, no"
                " action is needed. Otherwise stop the other release.",
                self._fleet,
                schema,
                others[schema],
                self._schema,
            )
        self._known = set(others)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
