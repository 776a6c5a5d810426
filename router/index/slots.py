"""Slots: the numbers of replicas in the prefix index, and all writes under them.

    key           value                             lifetime
    slots         hash: slot -> its incarnation,    until freed
                  or `sweeping:<id>`, `freed:<s>`
    batches       hash: slot -> number of the last  until freed
                  batch its incarnation wrote
    slot:<i>      lease and load snapshot, JSON     LEASE_S, renewed by heartbeat
    s:<key>       bitmap: bit i set = slot i's      SEGMENT_TTL_S, renewed slowly
                  replica holds this segment

Each write is one atomic Lua script, which first checks whether the registry still names its writer
for the slot. A flush, an empty restart or a sweep therefore fences a writer off, and its earlier
writes cannot arrive later under another replica's number. Batches are numbered. A repeat is
ignored. A gap (Redis restored an old snapshot, or a failover dropped a write) also fences, so
a cleared bit does not return. A number is assigned again only when its bits are cleared and no
gateway can mistake it for the old replica. One kind of failure remains: the index may miss cached
segments, but it never invents any.

Everything raises one of REDIS_FAILURES within REDIS_TIMEOUT_S, and may then have happened or not:
each call can be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from redis.exceptions import NoScriptError

from router.redis import redis_keys
from router.redis.redis_client import FOREIGN, AsyncRedis
from router.redis.redis_lane import Lane

REDIS_TIMEOUT_S = 1.0
LEASE_S = 2.0
SEGMENT_TTL_S = 3600
# A lookup waits for one batch at most: about half a millisecond on a slow core.
BATCH_KEYS = 128
# A gateway relies on a lease that it has read until the lease would have ended.
COOLING_S = 2

SWEEPING = "sweeping:"
FREED = "freed:"
# A value that Antefix's scripts did not write is not a slot, and must not extend a bitmap.
_SLOT = re.compile(r"0|[1-9][0-9]{0,4}")

Argument: TypeAlias = "str | bytes | int"


def slots_key(pool: str) -> str:
    return redis_keys.key(pool, "slots")


def batches_key(pool: str) -> str:
    return redis_keys.key(pool, "batches")


def lease_key(pool: str, slot: int) -> str:
    return redis_keys.key(pool, f"slot:{slot}")


def segment_prefix(pool: str) -> bytes:
    """Return the prefix of the Redis keys of a pool's bitmaps; the segment key follows."""
    return redis_keys.key(pool, "s:").encode()


@dataclass(frozen=True)
class Script:
    """A Lua script, sent by its digest; completely only to a Redis that does not know it."""

    lua: str

    @property
    def sha(self) -> str:
        return hashlib.sha1(self.lua.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self, redis: AsyncRedis, keys: Sequence[Argument], *arguments: Argument
    ) -> Any:
        async with asyncio.timeout(REDIS_TIMEOUT_S):
            try:
                return await redis.evalsha(self.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await redis.eval(self.lua, len(keys), *keys, *arguments)


_CLAIM = Script("""
local incarnation, wanted, cooling = ARGV[1], ARGV[2], tonumber(ARGV[3])
local now = tonumber(redis.call('TIME')[1])
local entries = redis.call('HGETALL', KEYS[1])
local taken = {}
for i = 1, #entries, 2 do
  local slot, value = entries[i], entries[i + 1]
  if value == incarnation then return tonumber(slot) end
  local freed = string.match(value, '^freed:(%d+)$')
  taken[slot] = not freed or now - tonumber(freed) <= cooling
end
local slot = wanted
if slot == '' or taken[slot] then
  local lowest = 0
  while taken[tostring(lowest)] do lowest = lowest + 1 end
  slot = tostring(lowest)
end
redis.call('HSET', KEYS[1], slot, incarnation)
redis.call('HSET', KEYS[2], slot, 0)
return tonumber(slot)
""")

_RENEW = Script("""
local slot, incarnation, written = ARGV[1], ARGV[2], tonumber(ARGV[3])
if redis.call('HGET', KEYS[1], slot) ~= incarnation then return 0 end
if tonumber(redis.call('HGET', KEYS[2], slot) or -1) < written then return 0 end
redis.call('SET', KEYS[3], ARGV[4], 'PX', ARGV[5])
return tonumber(redis.call('TIME')[1])
""")

_WRITE = Script("""
local slot, incarnation, number = ARGV[1], ARGV[2], tonumber(ARGV[3])
local cleared, ttl = tonumber(ARGV[4]), ARGV[5]
if redis.call('HGET', KEYS[1], slot) ~= incarnation then return 0 end
if number > 0 then
  local last = tonumber(redis.call('HGET', KEYS[2], slot) or -1)
  if last >= number then return 1 end
  if last ~= number - 1 then return 0 end
  redis.call('HSET', KEYS[2], slot, number)
end
for i = 3, 2 + cleared do
  if redis.call('GETBIT', KEYS[i], slot) == 1 then
    if redis.call('BITCOUNT', KEYS[i]) == 1 then
      redis.call('DEL', KEYS[i])
    else
      redis.call('SETBIT', KEYS[i], slot, 0)
    end
  end
end
for i = 3 + cleared, #KEYS do
  redis.call('SETBIT', KEYS[i], slot, 1)
  redis.call('EXPIRE', KEYS[i], ttl)
end
return 1
""")

_WITHDRAW = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
""")

_RELEASE = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return end
if tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or -1) < tonumber(ARGV[3]) then return end
redis.call('HSET', KEYS[1], ARGV[1], 'freed:' .. redis.call('TIME')[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[3])
""")

_RETIRE = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
""")

_FREE = Script("""
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
""")


async def claim(redis: AsyncRedis, pool: str, incarnation: str, wanted: int | None = None) -> int:
    """Register under the slot `wanted` if it is free, otherwise under the lowest free one.

    A repeated call for the same incarnation returns the same slot.
    """
    keys = [slots_key(pool), batches_key(pool)]
    preferred = "" if wanted is None else wanted
    return int(await _CLAIM(redis, keys, incarnation, preferred, COOLING_S))


async def renew(
    redis: AsyncRedis, pool: str, slot: int, incarnation: str, snapshot: str, written: int = 0
) -> int:
    """Publish the snapshot for LEASE_S. Return Redis' time in seconds; 0 if fenced off.

    `written` is the number of the last batch that Redis has acknowledged: a Redis that no longer
    has it has lost writes.
    """
    keys = [slots_key(pool), batches_key(pool), lease_key(pool, slot)]
    lease_ms = int(LEASE_S * 1000)
    return int(await _RENEW(redis, keys, slot, incarnation, written, snapshot, lease_ms))


def batch_count(set_keys: Sequence[bytes], cleared_keys: Sequence[bytes]) -> int:
    """Return how many batches `write_bits` sends for these keys."""
    return -(-(len(set_keys) + len(cleared_keys)) // BATCH_KEYS)


async def write_bits(
    redis: AsyncRedis,
    pool: str,
    slot: int,
    incarnation: str,
    set_keys: Sequence[bytes],
    cleared_keys: Sequence[bytes],
    number: int = 0,
) -> bool:
    """Set and clear the slot's bit in the bitmaps of these segment keys. False if fenced off.

    All batches are in one pipeline. `number` is that of the first: the writer counts them from 1,
    and repeats a failed call with the same keys and number. 0 writes unnumbered.
    """
    prefix = segment_prefix(pool)
    cleared, added = iter(cleared_keys), iter(set_keys)
    async with asyncio.timeout(REDIS_TIMEOUT_S):
        pipe = redis.pipeline(transaction=False)
        for i in range(batch_count(set_keys, cleared_keys)):
            keys: list[Argument] = [slots_key(pool), batches_key(pool)]
            keys += (prefix + key for key in islice(cleared, BATCH_KEYS))
            cleared_count = len(keys) - 2
            keys += (prefix + key for key in islice(added, BATCH_KEYS - cleared_count))
            batch_number = number + i if number else 0
            arguments = (slot, incarnation, batch_number, cleared_count, SEGMENT_TTL_S)
            # redis-py has no EVALSHA in a cluster's pipeline; the script is small compared with its
            # keys.
            pipe.eval(_WRITE.lua, len(keys), *keys, *arguments)
        return all(await pipe.execute())


async def withdraw(redis: AsyncRedis, pool: str, slot: int, incarnation: str) -> None:
    """End the lease at once: gateways stop reading the slot's bits. The slot stays taken."""
    await _WITHDRAW(redis, [slots_key(pool), lease_key(pool, slot)], slot, incarnation)


async def release(
    redis: AsyncRedis, pool: str, slot: int, incarnation: str, written: int = 0
) -> None:
    """Release the slot, after its bits are cleared. It is assigned again after COOLING_S.

    A Redis that no longer has the batch `written` keeps the slot taken, for the sweeper.
    """
    keys = [slots_key(pool), batches_key(pool), lease_key(pool, slot)]
    await _RELEASE(redis, keys, slot, incarnation, written)


async def retire(redis: AsyncRedis, pool: str, slot: int, value: str, sweeper: str) -> bool:
    """Fence a slot's writer off permanently, if the slot has no lease and still that registry
    value.

    From then on `SWEEPING + sweeper` is the incarnation under which its bits are cleared.
    """
    keys = [slots_key(pool), lease_key(pool, slot)]
    return bool(await _RETIRE(redis, keys, slot, value, SWEEPING + sweeper))


async def free(redis: AsyncRedis, pool: str, slot: int, sweeper: str) -> bool:
    """Release a swept slot. False if another sweeper has it by now."""
    keys = [slots_key(pool), batches_key(pool)]
    return bool(await _FREE(redis, keys, slot, SWEEPING + sweeper))


def _taken(entries: Mapping[str, str]) -> dict[int, str]:
    return {
        int(slot): value
        for slot, value in entries.items()
        if _SLOT.fullmatch(slot) and not value.startswith(FREED)
    }


@dataclass(frozen=True)
class Taken:
    """The taken slots of a pool at one moment.

    `writers`: slot -> an incarnation, or `SWEEPING` + a sweeper's id. `leased`: those with a lease,
    of any owner.
    """

    writers: Mapping[int, str]
    leased: frozenset[int]


@dataclass(frozen=True)
class Leases:
    """`live`: slot -> snapshot JSON of each replica whose bits are trusted. `beside`: the string
    that was read together with them."""

    live: dict[int, str]
    beside: str | None
    taken: Taken


async def read_leases(lane: Lane, pool: str, beside: str, known: Iterable[int] = ()) -> Leases:
    """Read the pool's leases and the string at its key `beside`.

    One round trip, if no slots except those `known` are taken. It has no timeout: set a limit.
    """
    wanted = sorted(known)
    replies = await asyncio.gather(
        *lane.send(("HGETALL", slots_key(pool)), ("MGET", *_keys(pool, beside, wanted)))
    )
    writers, found = _taken(_mapping(replies[0])), replies[1]
    if not writers.keys() <= set(wanted):
        wanted = sorted(writers)
        found = await lane.call("MGET", *_keys(pool, beside, wanted))
    value, *texts = (None if of is None else of.decode(errors=FOREIGN) for of in found)
    leases = {
        slot: lease
        for slot, lease in zip(wanted, texts, strict=True)
        if lease is not None and slot in writers
    }
    live = {slot: of for slot, of in leases.items() if _incarnation_of(of) == writers[slot]}
    return Leases(live, value, Taken(writers, frozenset(leases)))


def _keys(pool: str, beside: str, slots: Sequence[int]) -> list[str]:
    return [beside, *(lease_key(pool, slot) for slot in slots)]


def _mapping(reply: Any) -> dict[str, str]:
    """Return the mapping of an HGETALL reply: a list in RESP2."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(errors=FOREIGN): of.decode(errors=FOREIGN) for name, of in pairs}


class _Incarnation(msgspec.Struct):
    """The part of a lease that identifies its owner; the rest is not read."""

    incarnation: str


_decode = msgspec.json.Decoder(_Incarnation).decode


def _incarnation_of(lease: str) -> str | None:
    try:
        return _decode(lease).incarnation
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
