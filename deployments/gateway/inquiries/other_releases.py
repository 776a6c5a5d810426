"""The schemas of keys that the gateways of a fleet use: two releases that share no key meet here.

    schemas   hash: schema -> Unix time in seconds when a gateway last used it; kept for a day

Every release reads and writes this key in the same form. It is not signed, because nothing follows
from it except a line in the log. Nothing here raises or makes a request wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from common.loops import forever
from router import redis_keys
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.slots import REDIS_TIMEOUT_S

logger = logging.getLogger("ray.serve")

PERIOD_S = 60.0
# A schema is in use until its gateways have missed two periods.
IN_USE_S = 180.0
EXPIRE_S = 86400


def others_in_use(found: Mapping[str, str], own: int, now: float) -> dict[int, float]:
    """Return the other schemas in use, with seconds since. Foreign fields and values count for
    nothing; `now` is Unix time."""
    ages = {
        int(schema): max(0.0, now - int(used))
        for schema, used in found.items()
        if _is_number(schema) and _is_number(used)
    }
    return {schema: age for schema, age in ages.items() if schema != own and age <= IN_USE_S}


class SchemaWatch:
    """One gateway's: it says which schema it uses, and logs each other one when it appears.

    `redis` decodes. `clock` gives Unix time in seconds.
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
        """Until cancelled."""
        await forever(
            "schemas",
            self.look,
            PERIOD_S,
            fails="whether other releases use this fleet's Redis is not known",
            logger=logger,
            outages=REDIS_FAILURES,
        )

    async def look(self) -> None:
        """Raises one of REDIS_FAILURES."""
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
                "Another release of fleet %s uses keys of schema %d in this Redis, %.0f s ago."
                " This release uses schema %d, and they share no key. During an upgrade there is"
                " nothing to do. Otherwise stop the other release.",
                self._fleet,
                schema,
                others[schema],
                self._schema,
            )
        self._known = set(others)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
