"""Every gateway's placements, reported to all the others through a Redis stream.

    key       entry                                    kept
    placed    p: a number and a `Placed` as msgpack,   about 4096 entries, 60 s after the last
              signed; each gateway counts from 1

`append` never waits and never raises. Placements that Redis cannot take are dropped and counted,
because old ones are useless. The reader starts where the stream was 5 s ago. It recovers by itself
after an outage, a flush, a failover or a clock that went back. It reports nothing twice, not
even an entry that was copied within the stream. A gateway without reports places by snapshots only.

A placement is sent BEHIND_S after it was made: the gateway first sends the request to its engine.
What follows within PAUSE_S is sent or read with the next batch, so that many placements cost a
gateway and Redis few calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from common.loops import forever
from router.board.recent import Placed
from router.index.slots import Script
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.redis_lane import KeptLane
from router.redis.signature import Signer, opened_bytes, signed_bytes

logger = logging.getLogger(__name__)

MAX_LENGTH = 4096
EXPIRE_S = 60
QUEUE_LENGTH = 1024
BATCH = 64
WRITE_TIMEOUT_S = 1.0
LOOK_BACK_MS = 5000
# A silent stream is read from its end again after this time, in case Redis' clock was set back.
BLOCK_MS = 5000
READ_TIMEOUT_S = 6.0
READ_COUNT = 256
BEHIND_S, PAUSE_S = 0.001, 0.005

_WHERE = Script("""
local now = redis.call('TIME')
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return {now[1] * 1000 + math.floor(now[2] / 1000), last and last[1] or '0-0'}
""")

GATEWAYS_KEPT = 1000


class _Numbered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    number: int
    placed: Placed


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Numbered).decode


def stream_key(pool: str) -> str:
    return redis_keys.key(pool, "placed")


class PlacedStream:
    """One gateway's access to a pool's stream. `redis` returns bytes (`decode_responses=False`).

    `heard` is called with each placement of another gateway, in order. `dropped` counts own
    placements that could not be published. Entries that `signer` did not sign are ignored.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        gateway: str,
        heard: Callable[[Placed], None],
        *,
        signer: Signer | None = None,
    ) -> None:
        self._redis = redis
        self._signer = signer
        self._sent = 0
        # gateway -> its latest number, in order of the last entry
        self._numbers: dict[str, int] = {}
        self._key = stream_key(pool)
        # a blocking read delays later commands on its connection
        self._telling, self._hearing = (KeptLane(redis, self._key.encode()) for _ in range(2))
        self._gateway = gateway
        self._heard = heard
        self._queue: asyncio.Queue[Placed] = asyncio.Queue(QUEUE_LENGTH)
        # id of the last entry read: milliseconds of Redis' clock, and a count within one
        self._last: tuple[int, int] | None = None
        self._afresh = True
        self.dropped = 0

    def append(self, placed: Placed) -> None:
        """Publish a placement to the other gateways soon, or never."""
        try:
            self._queue.put_nowait(placed)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write and read until cancelled."""
        logged = partial(forever, logger=logger, outages=REDIS_FAILURES)
        told, heard = (
            f"failed to publish placements in {self._key}",
            f"failed to read placements from {self._key}",
        )
        try:
            await asyncio.gather(
                logged("placements_told", self._write, PAUSE_S, fails=told),
                logged("placements_heard", self._read, fails=heard),
            )
        finally:
            await self._telling.aclose()
            await self._hearing.aclose()

    async def _write(self) -> None:
        batch = [await self._queue.get()]
        try:
            await asyncio.sleep(BEHIND_S)
            while len(batch) < BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            await self._send(batch)
        except BaseException:
            self.dropped += len(batch) + self._queue.qsize()
            while not self._queue.empty():
                self._queue.get_nowait()
            raise

    async def _send(self, batch: list[Placed]) -> None:
        add = "XADD", self._key, "MAXLEN", "~", MAX_LENGTH, "*", b"p"
        async with self._telling.within(WRITE_TIMEOUT_S) as lane:
            told = [(*add, self._entry(placed)) for placed in batch]
            await asyncio.gather(*lane.send(*told, ("EXPIRE", self._key, EXPIRE_S)))

    def _entry(self, placed: Placed) -> bytes:
        self._sent += 1
        return signed_bytes(self._signer, self._key, _encode(_Numbered(self._sent, placed)))

    async def _read(self) -> None:
        afresh, self._afresh = self._afresh, True
        if afresh:
            await self._find_place()
        self._afresh = not await self._read_more()

    async def _find_place(self) -> None:
        """Return where to continue reading: the last position, but not too old, and not ahead of a
        stream that restarted under an earlier clock."""
        milliseconds, newest = await _WHERE(self._redis, [self._key])
        start = (int(milliseconds) - LOOK_BACK_MS, 0)
        now = (int(milliseconds) + 1, 0)
        if self._last is None or self._last > max(now, _parsed(newest)):
            self._last = start
        self._last = max(self._last, start)

    async def _read_more(self) -> bool:
        """Read, and return whether entries arrived."""
        assert self._last is not None
        after = "{}-{}".format(*self._last)
        read = "XREAD", "COUNT", READ_COUNT, "BLOCK", BLOCK_MS, "STREAMS", self._key, after
        async with self._hearing.within(READ_TIMEOUT_S) as lane:
            reply = await lane.call(*read)
        for entry_id, fields in (entries := _entries(reply)):
            self._last = _parsed(entry_id)
            self._hear(fields)
        if entries:
            await asyncio.sleep(PAUSE_S)
        return bool(entries)

    def _hear(self, fields: list[bytes]) -> None:
        try:
            value = opened_bytes(self._signer, self._key, fields[fields.index(b"p") + 1])
            found = None if value is None else _decode(value)
        except (ValueError, IndexError, msgspec.DecodeError):
            return  # no gateway wrote it
        if found is not None and found.placed.gateway != self._gateway and self._is_new(found):
            self._heard(found.placed)

    def _is_new(self, found: _Numbered) -> bool:
        gateway = found.placed.gateway
        last = self._numbers.pop(gateway, 0)
        self._numbers[gateway] = max(last, found.number)
        if len(self._numbers) > GATEWAYS_KEPT:
            del self._numbers[next(iter(self._numbers))]
        return found.number > last


def _entries(reply: Any) -> list[tuple[bytes, list[bytes]]]:
    """Return one stream's entries, each with its fields and values in turn: RESP2 replies [[key,
    entries]], RESP3 {key: entries}."""
    streams = reply.items() if isinstance(reply, dict) else reply or ()
    return [entry for _, entries in streams for entry in entries]


def _parsed(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, count = entry_id.partition(b"-")
    return int(milliseconds), int(count)
