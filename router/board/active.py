"""The number of active replicas of a pool: one value in Redis that all its gateways follow.

    key       value                                                    lifetime
    active    "<count> <promoted>", signed: the <count> most senior    no expiry
              of the live replicas take traffic, and <promoted> of
              these because gateways asked for more than the
              autoscaler

The other live replicas are warm: loaded and idle. Seniority follows from the replicas' snapshots
(`router.board.load`), so the next replica replaces a dead one without a message. A writer names the
value that it has read, and nothing is written if another writer was faster. So gateways that see
the same overload promote one replica together, and the autoscaler never undoes a promotion that it
has not seen.

Without the number all replicas take traffic. A number that the fleet did not sign counts as
missing, and the next writer that has read none replaces it. Raises REDIS_FAILURES within
REDIS_TIMEOUT_S. A failed write may have happened, and the next reading shows it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

from router.index.slots import REDIS_TIMEOUT_S, Script
from router.redis import redis_keys
from router.redis.redis_client import AsyncRedis
from router.redis.signature import Signer, opened, signed

_FORM = re.compile(r"(0|[1-9]\d{0,8}) (0|[1-9]\d{0,8})", re.ASCII)

# ARGV: the value that the writer saw, the new value, and the SHA-1 of a value that does not count.
# Returns nothing after a write, otherwise the value that it found and its SHA-1. A value of another
# type counts as missing.
_REPLACE = Script("""
local found = redis.call('MGET', KEYS[1])[1] or ''
local sha = redis.sha1hex(found)
if found ~= ARGV[1] and sha ~= ARGV[3] then return {found, sha} end
redis.call('SET', KEYS[1], ARGV[2])
return {}
""")
# Another value may be forged while one is being replaced.
_ATTEMPTS = 3


@dataclass(frozen=True)
class Active:
    """`count` replicas take traffic, `promoted` of them beyond the autoscaler's number."""

    count: int
    promoted: int = 0

    def __str__(self) -> str:
        return f"{self.count} {self.promoted}"


def active_key(pool: str) -> str:
    return redis_keys.key(pool, "active")


def parsed(value: str | None, pool: str = "", signer: Signer | None = None) -> Active | None:
    """Return the value of the pool's key; None if it is missing, unreadable or not genuine."""
    text = opened(signer, active_key(pool), value) if value else None
    found = _FORM.fullmatch(text or "")
    return Active(int(found[1]), int(found[2])) if found else None


async def read(redis: AsyncRedis, pool: str, signer: Signer | None = None) -> Active | None:
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        # MGET: a value of another type counts as missing
        [value] = await cast(Awaitable[list[str | None]], redis.mget([active_key(pool)]))
    return parsed(value, pool, signer)


@dataclass(frozen=True)
class ActiveWriter:
    """Changes the number of one pool."""

    redis: AsyncRedis
    pool: str
    signer: Signer | None = None

    async def publish(self, count: int, seen: Active | None) -> Active | None:
        """Let `count` replicas take traffic, if the number is still `seen`.

        Return the current number: `Active(count)`, or the one that another writer set meanwhile.
        """
        return await self._replace(seen, Active(max(0, count)))

    async def promote(self, seen: Active) -> Active | None:
        """Let one more replica take traffic, if the number is still `seen`. Return the current
        number.
        """
        # one replica takes traffic even if the number is 0
        count = max(1, seen.count) + 1
        return await self._replace(seen, Active(count, count - seen.count + seen.promoted))

    async def _replace(self, seen: Active | None, wanted: Active) -> Active | None:
        key, foreign = active_key(self.pool), ""
        before = signed(self.signer, key, str(seen)) if seen else ""
        after = signed(self.signer, key, str(wanted))
        for _ in range(_ATTEMPTS):
            reply = await _REPLACE(self.redis, [key], before, after, foreign)
            if not reply:
                return wanted
            found, foreign = reply
            current = parsed(found, self.pool, self.signer)
            if seen is not None or current is not None or not found:
                return current
        return None
