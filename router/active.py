"""How many replicas of a pool take traffic: one number in Redis, followed by all its gateways.

    key       value                                                    lifetime
    active    "<count> <promoted>": the <count> most senior of the     for good
              live replicas take traffic, and <promoted> of these
              because gateways asked for more than the autoscaler

The other live replicas are warm: loaded, and idle. Who is most senior follows from the replicas'
own snapshots (`router.load`), so a dead one is replaced by the next without a word. Who writes
says what it had seen, and nothing is written if another was faster: gateways that see the same
overload promote one replica together, and the autoscaler undoes no promotion unseen.

Without the number all replicas take traffic. Raises REDIS_FAILURES within REDIS_TIMEOUT_S; what
failed may have happened or not, and the next reading tells.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

from router import redis_keys
from router.redis_client import AsyncRedis
from router.slots import REDIS_TIMEOUT_S, Script

_FORM = re.compile(r"(\d{1,9}) (\d{1,9})", re.ASCII)

# A value of another type or form counts as none, here as in `parsed`.
_REPLACE = Script("""
local found = redis.call('MGET', KEYS[1])[1] or ''
local count, promoted = string.match(found, '^(%d+) (%d+)$')
if not count or #count > 9 or #promoted > 9 then
  found = ''
else
  found = string.format('%d %d', count, promoted)
end
if found ~= ARGV[1] then return found end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
""")


@dataclass(frozen=True)
class Active:
    """`count` replicas take traffic, `promoted` of them beyond what the autoscaler asked for."""

    count: int
    promoted: int = 0

    def __str__(self) -> str:
        return f"{self.count} {self.promoted}"


def active_key(pool: str) -> str:
    return redis_keys.key(pool, "active")


def parsed(value: str | None) -> Active | None:
    """What the key holds; None for nothing, or nothing readable."""
    found = _FORM.fullmatch(value or "")
    return Active(int(found[1]), int(found[2])) if found else None


async def read(redis: AsyncRedis, pool: str) -> Active | None:
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        # MGET: a value of another type is none
        [value] = await cast(Awaitable[list[str | None]], redis.mget([active_key(pool)]))
    return parsed(value)


async def publish(redis: AsyncRedis, pool: str, count: int, seen: Active | None) -> Active | None:
    """Let `count` replicas take traffic, if the number is still the one `seen`.

    Returns what it is now: `Active(count)`, or what another made it meanwhile.
    """
    return await _replace(redis, pool, seen, Active(max(0, count)))


async def promote(redis: AsyncRedis, pool: str, seen: Active) -> Active | None:
    """Let one more replica take traffic, if the number is still the one `seen`.

    Returns what it is now.
    """
    # one replica takes traffic even where the number is 0
    count = max(1, seen.count) + 1
    return await _replace(redis, pool, seen, Active(count, count - seen.count + seen.promoted))


async def _replace(
    redis: AsyncRedis, pool: str, seen: Active | None, wanted: Active
) -> Active | None:
    arguments = (str(seen) if seen else "", str(wanted))
    return parsed(await _REPLACE(redis, [active_key(pool)], *arguments))
