"""The publisher of one replica's cache and load to Redis, while it lives.

The engine's events change `CachedBlocks` as they arrive. Changes are written about FLUSH_DELAY_S
later, in order, while more arrive. A heartbeat publishes the load and checks whether Redis still
knows the replica. If not (flushed, restarted, swept while the replica was frozen), it claims a slot
under a new incarnation and writes everything again. Changes during an outage are written when Redis
answers. After an event gap, or events of more blocks than exist, nothing is trusted: the
incarnation ends and its bits are cleared. Nothing here raises; while writing lags behind, `synced`
is False and the index under-reports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from common.loops import Loops, forever
from router.index import slots
from router.index.cached_blocks import CachedBlocks, Changes
from router.index.event_stream import EventBatch
from router.index.kv_events import AllBlocksCleared
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis

logger = logging.getLogger(__name__)

HEARTBEAT_S = 0.1
# How often a lease with unchanged text is renewed; it ends after LEASE_S.
RENEW_S = 0.25
# Collects the changes of an engine step.
FLUSH_DELAY_S = 0.005
STOP_S = 2.0
# Segments per pipeline: Redis must answer many replicas at once in time.
CHUNK_KEYS = 1024
# A clock that is this far ahead at the next heartbeat was set: bits may have expired.
SET_FORWARD_S = 1200
# Pause before an engine's events are followed again, after their end or a failure.
FOLLOW_AGAIN_S = 1.0

Batches: TypeAlias = "Callable[[], AsyncGenerator[EventBatch, None]]"


@dataclass(frozen=True)
class Lease:
    """The part of a snapshot about the replica's place in the index."""

    slot: int
    incarnation: str
    synced: bool


@dataclass(frozen=True)
class Refresh:
    """The frequency of setting all bits again: well within their lifetime, and never many at
    once."""

    period_s: float = 1200.0
    keys: int = 2048
    pause_s: float = 1.0


def _chunks(keys: Sequence[bytes], size: int) -> Iterator[Sequence[bytes]]:
    return (keys[i : i + size] for i in range(0, len(keys), size))


class _Tenancy:
    """One incarnation in its slot, with the changes still to be written under it, in order."""

    def __init__(self, redis: AsyncRedis, pool: str, slot: int, incarnation: str) -> None:
        self._redis = redis
        self._pool = pool
        self.slot = slot
        self.incarnation = incarnation
        self.outbox: deque[Changes] = deque()
        # Batches that Redis has acknowledged.
        self.written = 0
        # By Redis' clock, seconds.
        self._renewed_at = 0

    def add(self, changes: Changes) -> None:
        self.outbox.extend(Changes([], list(keys)) for keys in _chunks(changes.cleared, CHUNK_KEYS))
        self.outbox.extend(Changes(list(keys), []) for keys in _chunks(changes.set, CHUNK_KEYS))

    async def write_next(self) -> bool:
        """Write the first of the outbox. False if fenced off. After an error, call again."""
        first = self.outbox[0]
        number = self.written + 1
        if not await slots.write_bits(
            self._redis, self._pool, self.slot, self.incarnation, first.set, first.cleared, number
        ):
            return False
        self.written += slots.batch_count(first.set, first.cleared)
        self.outbox.popleft()
        return True

    async def renew(self, snapshot: str) -> bool:
        """Renew the lease. False if fenced off, or if the bits may have expired because Redis'
        clock was set forward."""
        now = await slots.renew(
            self._redis, self._pool, self.slot, self.incarnation, snapshot, self.written
        )
        before, self._renewed_at = self._renewed_at or now, now
        return 0 < now < before + SET_FORWARD_S

    async def leave(self, keys: Sequence[bytes]) -> None:
        """End the lease, clear the bits of these keys and release the slot."""
        await slots.withdraw(self._redis, self._pool, self.slot, self.incarnation)
        self.add(Changes([], list(keys)))
        while self.outbox:
            if not await self.write_next():
                return  # the sweeper removes the rest
        await slots.release(self._redis, self._pool, self.slot, self.incarnation, self.written)


class IndexPublisher:
    """Keeps one replica's lease, load and segment bits in Redis from `start` to `stop`.

    `published` is set once it is on the board, for the first time. `measure` creates the snapshot
    that is published with the lease, as JSON with the lease's incarnation in it. `on_lost` is
    called when events are lost. `clock`: seconds.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        cached: CachedBlocks,
        measure: Callable[[Lease], str],
        on_lost: Callable[[], None] = lambda: None,
        *,
        refresh: Refresh = Refresh(),  # frozen
        stop_s: float = STOP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._often = refresh
        self._stop_s = stop_s
        self._redis = redis
        self._pool = pool
        self._cached = cached
        self._measure = measure
        self._on_lost = on_lost
        self.published = asyncio.Event()
        self._loops = Loops()
        self._work = asyncio.Event()
        self._work.set()  # a slot must be claimed
        self._tenancy: _Tenancy | None = None
        # The tenancy is over, and another slot must be claimed; the keys that remain in Redis for
        # the old slot.
        self._over = False
        self._doomed: list[bytes] = []
        # Kept until Redis confirms the claim, so that a repeated claim takes no second slot.
        self._claiming = secrets.token_hex(8)
        self._beating = False
        # Start of the wait of the oldest change: to be taken from `cached`, or to be acknowledged.
        self._waiting_since: float | None = None
        self._writing_since: float | None = None
        self._moved_at = self._clock()
        # This replica's lease in Redis, and its time; empty: unknown.
        self._published_text, self._renewed_at = "", float("-inf")

    @property
    def synced(self) -> bool:
        """Whether the engine's whole cache is in Redis, except changes younger than a heartbeat."""
        if self._tenancy is None or self._over or not self._beating:
            return False
        since = [at for at in (self._waiting_since, self._writing_since) if at is not None]
        return self._clock() - min(since, default=float("inf")) <= HEARTBEAT_S

    @property
    def lag_s(self) -> float:
        """Age of the oldest change that is not in Redis yet; 0 if all are."""
        since = [at for at in (self._waiting_since, self._writing_since) if at is not None]
        # changes written again have waited since the move, whatever `synced` returns
        now = self._clock()
        return now - max(min(since, default=now), self._moved_at)

    @property
    def ended(self) -> list[str]:
        """Its loops that ended before `stop`: normally none."""
        return self._loops.ended

    def start(self, batches: Batches) -> None:
        """Start. `batches` yields the engine's events, and is called again when that failed."""
        of = f"of a replica of {self._pool}"
        follow = partial(self._follow, batches)
        kept = partial(forever, logger=logger, outages=REDIS_FAILURES)
        for loop, step, period_s, fails in (
            ("kv_events", follow, FOLLOW_AGAIN_S, f"failed to read KV events {of}"),
            ("index_writer", self._write, 0.0, f"failed to write the index {of}"),
            ("heartbeat", self._beat, HEARTBEAT_S, f"failed to publish the load {of}"),
            (
                "index_refresh",
                self._refresh,
                self._often.period_s,
                f"failed to refresh the index {of}",
            ),
        ):
            self._loops.start(loop, kept(loop, step, period_s, fails=fails))

    def cleared(self) -> None:
        """Record that the engine dropped its whole cache; call it before the event stream reports
        it late."""
        self._cached.apply([AllBlocksCleared()])
        self._end_tenancy()

    def readable(self, segments: Sequence[bytes], gone: Sequence[bytes]) -> None:
        """Set which segments the engine can read from files (`CachedBlocks.set_readable`)."""
        self._cached.set_readable(segments, gone)
        self._changed()

    async def stop(self) -> None:
        """Leave the index within `stop_s`; the sweeper clears the rest."""
        with contextlib.suppress(*REDIS_FAILURES):
            async with asyncio.timeout(self._stop_s):
                await self._loops.stop()
                tenancy, self._tenancy = self._tenancy, None
                if tenancy is not None:
                    removed = self._cached.take_changes().cleared
                    await tenancy.leave([*self._doomed, *removed, *self._cached.keys()])

    async def _follow(self, batches: Batches) -> None:
        try:
            async with contextlib.aclosing(batches()) as events:
                async for batch in events:
                    if batch.lost:
                        self._lose()
                    self._cached.apply(batch.events)
                    if self._cached.overfull:
                        logger.warning(
                            "KV events of a replica of %s reported more blocks than it has;"
                            " learning its cache again",
                            self._pool,
                        )
                        self._lose()
                    self._changed()
                    # A stream that always has more events must not block other tasks.
                    await asyncio.sleep(0)
        except Exception:
            self._lose()
            raise
        # From here on, no events report the engine's cache.
        self._forget()

    def _lose(self) -> None:
        self._forget()
        self._on_lost()

    def _changed(self) -> None:
        self._waiting_since = self._waiting_since or self._clock()
        self._work.set()

    def _forget(self) -> None:
        self._cached.forget()
        self._end_tenancy()

    def _end_tenancy(self) -> None:
        """End the incarnation, which fences off all its data in Redis at once."""
        doomed = self._cached.take_changes().cleared
        if doomed:
            self._doomed += doomed
            self._over = True
            self._work.set()

    async def _write(self) -> None:
        await self._work.wait()
        self._work.clear()
        try:
            await asyncio.sleep(FLUSH_DELAY_S)
            await self._catch_up()
        except BaseException:  # any error: the next attempt repairs it
            self._work.set()
            raise

    async def _catch_up(self) -> None:
        """Write the queue; new changes meanwhile have set `_work`."""
        if self._tenancy is None or self._over:
            await self._move()
        tenancy = self._tenancy
        assert tenancy is not None
        if not tenancy.outbox:
            self._take_changes(tenancy)
        while tenancy.outbox and not self._over:
            if not await tenancy.write_next():
                self._fenced(tenancy)
        self._writing_since = None
        if self._waiting_since is not None:  # later than the rest of an earlier attempt
            self._work.set()

    def _take_changes(self, tenancy: _Tenancy) -> None:
        tenancy.add(self._cached.take_changes())
        self._writing_since = self._writing_since or self._waiting_since
        self._waiting_since = None

    def _fenced(self, tenancy: _Tenancy) -> None:
        if tenancy is self._tenancy:
            self._over = True
            self._work.set()

    async def _move(self) -> None:
        """Claim a slot for a new incarnation, and queue the whole cache under it."""
        old = self._tenancy
        # After a flush, the same number as before, so that no gateway reads it as another
        # replica's.
        wanted = old.slot if old else None
        slot = await slots.claim(self._redis, self._pool, self._claiming, wanted)
        self._tenancy = _Tenancy(self._redis, self._pool, slot, self._claiming)
        self._claiming = secrets.token_hex(8)
        self._cached.take_changes()
        self._tenancy.add(Changes(self._cached.keys(), []))
        self._over, doomed, self._doomed = False, self._doomed, []
        self._writing_since, self._waiting_since = float("-inf"), None
        self._moved_at = self._clock()
        await self._renew()  # before the old lease ends, so that the replica stays on the board
        if old is not None:
            with contextlib.suppress(*REDIS_FAILURES):  # the sweeper removes it
                await old.leave(doomed)

    async def _beat(self) -> None:
        try:
            await self._renew()
            self._beating = True
        except BaseException:
            self._beating = False
            raise

    async def _renew(self) -> None:
        if (tenancy := self._tenancy) is None:
            return
        lease = Lease(tenancy.slot, tenancy.incarnation, self.synced)
        snapshot, now = self._measure(lease), self._clock()
        if snapshot == self._published_text and now - self._renewed_at < RENEW_S:
            return
        self._published_text = ""
        if await tenancy.renew(snapshot):
            self._published_text, self._renewed_at = snapshot, now
            self.published.set()
        else:
            self._fenced(tenancy)

    async def _refresh(self) -> None:
        """Set every bit again from time to time: for its lifetime, and in case Redis has lost
        it."""
        await self._pause()
        for keys in self._cached.chunks(self._often.keys):
            assert self._tenancy is not None
            self._take_changes(self._tenancy)
            self._tenancy.add(Changes(keys, []))
            self._work.set()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until Redis has all writes, at least a pause."""
        await asyncio.sleep(self._often.pause_s)
        while not self.synced:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(self._often.pause_s)
