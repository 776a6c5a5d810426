"""Releases the slots of dead replicas: it clears their bits, then frees their numbers.

It runs in every gateway; a lock lets one work at a time. It checks the slots that the gateway reads
with the loads, so that an idle sweeper sends nothing to Redis. A slot without a lease for
UNLEASED_S, by this sweeper's clock, is first retired, which fences its writer off permanently. Then
every bitmap of the pool is checked, some at a time, with pauses. A sweeper that stops midway leaves
the slot marked, and another restarts it when the lock has expired. A slot is freed only after one
whole pass over one and the same Redis process; otherwise it stays taken. Nothing here raises.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from redis.asyncio import Redis
from redis.client import NEVER_DECODE

from common.loops import forever
from router.index import slots
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger(__name__)

SWEEP_PERIOD_S = 1.0
# Two leases, so that a replica that stalls for one keeps its slot.
UNLEASED_S = 2 * slots.LEASE_S
LOCK_S = 30.0
PAGE_KEYS = 1000
# A page occupies Redis for about a millisecond.
PAGE_PAUSE_S = 0.01

_LOCK = slots.Script("""
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
""")

_UNLOCK = slots.Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
""")


async def _pause() -> None:
    await asyncio.sleep(PAGE_PAUSE_S)


class Sweeper:
    """`look` waits for the next reading of the pool's slots; None: it failed."""

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        look: Callable[[], Awaitable[slots.Taken | None]],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], Awaitable[None]] = _pause,
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._look = look
        self._clock = clock
        self._pause = pause
        self._id = secrets.token_hex(8)
        self._lock_key = redis_keys.key(pool, "sweeper")
        # (slot, registry value) -> time since which it has had no lease
        self._unleased: dict[tuple[int, str], float] = {}
        self._failing = False

    async def run(self) -> None:
        """Sweep until cancelled."""
        await forever(
            "sweeper",
            self.sweep_once,
            SWEEP_PERIOD_S,
            fails=f"failed to sweep dead slots of {self._pool}",
            logger=logger,
        )

    async def sweep_once(self) -> int:
        """Check once, and sweep what is due. Return how many slots became free."""
        try:
            taken = await self._look()
            if taken is None:
                # After an outage, publishers get the full time again.
                self._unleased.clear()
                return 0
            freed = await self._sweep(self._due(taken))
            self._failing = False
            return freed
        except REDIS_FAILURES as error:
            if not self._failing:
                logger.warning("failed to sweep dead slots of %s: %s", self._pool, error)
            self._failing = True
            self._unleased.clear()
            return 0

    def _due(self, taken: slots.Taken) -> list[tuple[int, str]]:
        now = self._clock()
        self._unleased = {
            entry: self._unleased.get(entry, now)
            for entry in taken.writers.items()
            if entry[0] not in taken.leased
        }
        return [entry for entry, since in self._unleased.items() if now - since >= UNLEASED_S]

    async def _sweep(self, due: Sequence[tuple[int, str]]) -> int:
        if not due or not await self._hold_lock():
            return 0
        retired = [
            slot
            for slot, value in due
            if await slots.retire(self._redis, self._pool, slot, value, self._id)
        ]
        freed = 0
        if retired and await self._clear(retired):
            for slot in retired:
                freed += await slots.free(self._redis, self._pool, slot, self._id)
        await _UNLOCK(self._redis, [self._lock_key], self._id)
        return freed

    async def _hold_lock(self) -> bool:
        """Take the lock, or keep it for another LOCK_S. False while another has it."""
        return bool(await _LOCK(self._redis, [self._lock_key], self._id, int(LOCK_S * 1000)))

    async def _clear(self, retired: Sequence[int]) -> bool:
        """Clear these slots' bits everywhere. False if a bit may have been missed."""
        server, process = await self._server()
        prefix = slots.segment_prefix(self._pool)
        # Redis interprets *, ? and [] in a pattern, and a pool's name may contain them.
        pattern = re.sub(rb"([*?\[\]\\])", rb"\\\1", prefix) + b"*"
        cursor = 0
        while True:
            async with asyncio.timeout(slots.REDIS_TIMEOUT_S):
                cursor, found = await server.execute_command(
                    "SCAN", cursor, "MATCH", pattern, "COUNT", PAGE_KEYS, **{NEVER_DECODE: True}
                )
            keys = [key.removeprefix(prefix) for key in found]
            for slot in retired:
                mark = slots.SWEEPING + self._id
                if not await slots.write_bits(self._redis, self._pool, slot, mark, (), keys):
                    return False
            if cursor == 0:
                # A cursor is invalid in another process, for example after a failover.
                return await self._server() == (server, process)
            await self._pause()
            if not await self._hold_lock():
                return False

    async def _server(self) -> tuple[Any, str]:
        """Return the one server with all keys of the pool, and the id of its process."""
        server: Any = self._redis
        if not isinstance(server, Redis):
            server = server.get_node_from_key(slots.slots_key(self._pool))
        async with asyncio.timeout(slots.REDIS_TIMEOUT_S):
            info = await cast(Awaitable[dict[str, str]], server.execute_command("INFO", "server"))
        return server, info["run_id"]
