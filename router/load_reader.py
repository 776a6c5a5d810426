"""Keeps a `LoadBoard` current out of the replicas' leases in Redis (`router.slots`).

Nothing here raises: while Redis is slow or gone the board is not updated, and empties when what
it knows is older than a lease.
"""

from __future__ import annotations

import logging

import msgspec

from common.loops import forever
from router import active, slots
from router.lease_signature import LeaseSigner
from router.load import LoadBoard, ReplicaLoad
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis_lane import KeptLane

logger = logging.getLogger(__name__)

READ_PERIOD_S = 0.1

_decode = msgspec.json.Decoder(ReplicaLoad).decode


class LoadReader:
    """`board`, `scaled` and `forged` are public. `scaled`: not all of the pool's replicas take
    traffic; where all do, what Redis says of that is old. `signer`: what it did not sign is not
    believed; None: every lease is. `forged`: how many were not, in the latest reading."""

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        board: LoadBoard,
        scaled: bool = True,
        signer: LeaseSigner | None = None,
    ) -> None:
        self._redis = redis
        self._lane = KeptLane(redis, slots.slots_key(pool).encode())
        self._signer = signer
        self.forged = 0
        self._pool = pool
        self.board = board
        self.scaled = scaled
        # A reading that began before a promotion may be older than it.
        self._promotions = 0
        self._unreadable: dict[int, str] = {}  # slot -> what was told of it
        self._known: frozenset[int] = frozenset()

    async def run(self, period_s: float = READ_PERIOD_S) -> None:
        """Refresh the board until cancelled."""
        try:
            await forever(
                "load_board",
                self.read,
                period_s,
                fails=f"load board of {self._pool} not readable",
                logger=logger,
                outages=REDIS_FAILURES,
            )
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End what `read` has opened; `run` does."""
        await self._lane.aclose()

    async def read(self) -> None:
        """Refresh the board once. Raises one of REDIS_FAILURES."""
        promotions = self._promotions
        async with self._lane.within(slots.REDIS_TIMEOUT_S) as lane:
            key = active.active_key(self._pool)
            leases, value = await slots.live(lane, self._pool, key, self._known)
        self._known = frozenset(leases)
        snapshots = self._genuine(leases)
        seen = active.parsed(value) if self._promotions == promotions else self.board.active_seen
        # a number that was left by a fleet file of another day says nothing
        self.board.update(self._readable(snapshots), seen if self.scaled else None)

    def _genuine(self, leases: dict[int, str]) -> dict[int, str]:
        if (signer := self._signer) is None:
            return leases
        genuine = {slot: text for slot, text in leases.items() if signer.is_genuine(slot, text)}
        forged = leases.keys() - genuine.keys()
        if forged and not self.forged:
            logger.error(
                "leases of %s in Redis are not signed by replicas of this fleet, and are not"
                " believed: slots %s",
                self._pool,
                sorted(forged),
            )
        self.forged = len(forged)
        return genuine

    async def promote(self) -> bool:
        """Let the next warm replica take traffic, here at once and soon at every gateway.

        True also when another gateway was faster; False without a warm replica, or an answer
        of Redis within slots.REDIS_TIMEOUT_S.
        """
        seen = self.board.active_seen
        if seen is None or not self.board.warm():
            return False
        try:
            now = await active.promote(self._redis, self._pool, seen)
        except REDIS_FAILURES as error:
            logger.warning("no replica of %s promoted: %s", self._pool, error)
            return False
        self.board.active_seen = now
        self._promotions += 1
        return now is None or now.count > seen.count

    def _readable(self, snapshots: dict[int, str]) -> list[ReplicaLoad]:
        """A snapshot of another release must not take the others off the board."""
        loads, unreadable = [], {}
        for slot, snapshot in snapshots.items():
            try:
                loads.append(_decode(snapshot))
            except msgspec.MsgspecError as error:
                unreadable[slot] = str(error)
                if self._unreadable.get(slot) != unreadable[slot]:  # it comes ten times a second
                    logger.warning("the snapshot in slot %d is not readable: %s", slot, error)
        self._unreadable = unreadable
        return loads
