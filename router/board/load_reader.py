"""Keep a `LoadBoard` current from the replicas' leases in Redis (`router.index.slots`).

Nothing here raises: while Redis is slow or unavailable the board is not updated, and becomes empty
when its data is older than a lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from common.loops import forever, until_next
from router.board import active
from router.board.load import LoadBoard, ReplicaLoad
from router.index import slots
from router.redis.lease_signature import LeaseSigner
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis.redis_lane import KeptLane
from router.redis.signature import Signer

logger = logging.getLogger(__name__)

# A request is placed by loads that are at most this old, and causes a reading.
READ_PERIOD_S = 0.1
# Period of readings without requests; a lease ends after `slots.LEASE_S`.
IDLE_PERIOD_S = 0.5

_decode = msgspec.json.Decoder(ReplicaLoad).decode


class LoadReader:
    """`board`, `scaled`, `forged` and `taken` are public.

    `scaled`: not all of the pool's replicas are active; otherwise the number in Redis is out of
    date. `signer`: leases that it did not sign are ignored; None: all are accepted. `forged`: the
    number of ignored leases in the latest reading. `taken`: the slots of the latest reading; None:
    it failed, or there was none.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        board: LoadBoard,
        scaled: bool = True,
        signer: Signer | None = None,
    ) -> None:
        self._redis = redis
        self._lane = KeptLane(redis, slots.slots_key(pool).encode())
        self._signer = signer
        self._leases = LeaseSigner(signer, pool) if signer else None
        self._active = active.ActiveWriter(redis, pool, signer)
        self.forged = 0
        self.taken: slots.Taken | None = None
        self._pool = pool
        self.board = board
        self.scaled = scaled
        # A reading that started before a promotion may not contain it.
        self._promotions = 0
        self._unreadable: dict[int, str] = {}  # slot -> the warning that was logged
        self._known: frozenset[int] = frozenset()
        # slot -> a genuine lease of the last reading: most are the same the next time
        self._decoded: dict[int, tuple[str, ReplicaLoad]] = {}
        self._began_at = float("-inf")
        self._wanted = asyncio.Event()
        self._is_reading = False
        self._is_on_time = True
        # Done after the next reading; created when a caller waits for one.
        self._reading: asyncio.Future[None] | None = None

    async def run(self, needed_every_s: Callable[[], float] = lambda: READ_PERIOD_S) -> None:
        """Keep the board current until cancelled.

        It is read when `fresh` requests it, and every `needed_every_s()`, which is called after
        each reading and is bounded by READ_PERIOD_S and IDLE_PERIOD_S.
        """

        async def read_when_wanted() -> None:
            bounded_s = min(max(needed_every_s(), READ_PERIOD_S), IDLE_PERIOD_S)
            await self._pause(bounded_s)
            await self.read()

        try:
            await forever(
                "load_board",
                read_when_wanted,
                fails=f"failed to read the load board of {self._pool}",
                logger=logger,
                outages=REDIS_FAILURES,
            )
        finally:
            await self.aclose()

    async def fresh(self, within_s: float) -> None:
        """Wait until the board is no older than READ_PERIOD_S; at most `within_s`, in seconds.

        Never raises. Returns at once if the board is fresh, or if the last reading failed or is
        late. Requests share a reading.
        """
        if asyncio.get_running_loop().time() - self._began_at <= READ_PERIOD_S:
            return
        reading = self._next()
        self.want()
        if self._is_on_time:
            done, _ = await asyncio.wait((reading,), timeout=within_s)
            self._is_on_time = bool(done)

    async def next_reading(self) -> None:
        """Wait until the board was read once more, or the reading is late."""
        # longer than the period of idle readings: its callers are woken once for it
        await asyncio.wait((self._next(),), timeout=1.5 * IDLE_PERIOD_S)

    async def next_taken(self) -> slots.Taken | None:
        """Wait for the next reading of the slots; None: it failed, or is late."""
        reading = self._next()
        await self.next_reading()
        return self.taken if reading.done() else None

    def want(self) -> None:
        """Have the board read now, and `needed_every_s` of `run` called again."""
        if not self._is_reading:
            self._wanted.set()

    def _next(self) -> asyncio.Future[None]:
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_future()
        return self._reading

    async def _pause(self, period_s: float) -> None:
        loop = asyncio.get_running_loop()
        # aligned with other loops: an idle process is woken once for all of them
        timer = loop.call_later(until_next(period_s, loop.time()), self._wanted.set)
        try:
            await self._wanted.wait()
        finally:
            timer.cancel()
        self._wanted.clear()

    async def aclose(self) -> None:
        """Close the connections that `read` has opened; `run` does it."""
        await self._lane.aclose()

    async def read(self) -> None:
        """Refresh the board once. Raises one of REDIS_FAILURES."""
        self._is_reading = True
        try:
            await self._read()
            self._is_on_time = True
        except BaseException:
            self._is_on_time, self.taken = False, None
            raise
        finally:
            self._is_reading = False
            if self._reading is not None and not self._reading.done():
                self._reading.set_result(None)
            self._reading = None

    async def _read(self) -> None:
        began_at, promotions = asyncio.get_running_loop().time(), self._promotions
        async with self._lane.within(slots.REDIS_TIMEOUT_S) as lane:
            key = active.active_key(self._pool)
            found = await slots.read_leases(lane, self._pool, key, self._known)
        self._began_at = began_at
        self.taken = found.taken
        self._known = frozenset(found.live)
        genuine = self._genuine(found.live)
        seen = self.board.active_seen
        if self._promotions == promotions:
            seen = active.parsed(found.beside, self._pool, self._signer)
        # a number from an earlier fleet file, with autoscaling, no longer applies
        self.board.update(self._readable(genuine), seen if self.scaled else None)

    def _genuine(self, leases: dict[int, str]) -> dict[int, str]:
        if (signer := self._leases) is None:
            return leases
        genuine = {
            slot: text
            for slot, text in leases.items()
            if self._is_as_before(slot, text) or signer.is_genuine(slot, text)
        }
        forged = leases.keys() - genuine.keys()
        if forged and not self.forged:
            logger.error(
                "ignored leases of %s in Redis that no replica of this fleet signed: slots %s",
                self._pool,
                sorted(forged),
            )
        self.forged = len(forged)
        return genuine

    async def promote(self) -> bool:
        """Let the next warm replica take traffic, here at once and soon at every gateway.

        True also if another gateway was faster; False without a warm replica, or an answer of Redis
        within slots.REDIS_TIMEOUT_S.
        """
        seen = self.board.active_seen
        if seen is None or not self.board.warm():
            return False
        try:
            now = await self._active.promote(seen)
        except REDIS_FAILURES as error:
            logger.warning("failed to promote a warm replica of %s: %s", self._pool, error)
            return False
        self.board.active_seen = now
        self._promotions += 1
        return now is None or now.count > seen.count

    def _is_as_before(self, slot: int, lease: str) -> bool:
        return self._decoded.get(slot, ("",))[0] == lease

    def _readable(self, leases: dict[int, str]) -> list[ReplicaLoad]:
        """Return the readable snapshots. One of another release must not hide the others."""
        decoded, unreadable = {}, {}
        for slot, lease in leases.items():
            if self._is_as_before(slot, lease):
                decoded[slot] = self._decoded[slot]
                continue
            try:
                decoded[slot] = lease, _decode(lease)
            except msgspec.MsgspecError as error:
                unreadable[slot] = str(error)
                # logged once, not at each reading
                if self._unreadable.get(slot) != unreadable[slot]:
                    logger.warning("failed to read the snapshot in slot %d: %s", slot, error)
        self._decoded, self._unreadable = decoded, unreadable
        return [load for _, load in decoded.values()]
