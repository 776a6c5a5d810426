"""Reports to gateways why a replica ended, for its watchdog (`router.board.replica_death`).

The replica signs both causes in advance, so the watchdog needs no secret of the fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import asdict, dataclass, field

from router.board.replica_death import KEPT_S, OTHER_CAUSE, OUT_OF_MEMORY, death_key
from router.redis.signature import Signer, signed_bytes

# The watchdog has other duties.
WITHIN_S = 0.5


@dataclass(frozen=True)
class DeathReport:
    """What to write at `key`: `memory` if the replica ran out of it, otherwise `other`, both in
    hexadecimal digits."""

    redis_url: str = field(repr=False)
    key: str
    memory: str
    other: str

    @classmethod
    def of(cls, redis_url: str, fleet: str, secret: str, replica_id: str) -> DeathReport:
        """Return the report of a replica. `fleet`: the fleet's board."""
        key, signer = death_key(fleet, replica_id), Signer(secret)
        causes = (OUT_OF_MEMORY, OTHER_CAUSE)
        memory, other = (signed_bytes(signer, key, cause).hex() for cause in causes)
        return cls(redis_url, key, memory, other)

    @classmethod
    def from_json(cls, text: str) -> DeathReport:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def write(self, ran_out: bool) -> None:
        """Write the cause. If Redis does not take it in time, gateways assume another cause."""
        with contextlib.suppress(Exception):  # the watchdog goes on
            asyncio.run(self._write(bytes.fromhex(self.memory if ran_out else self.other)))

    async def _write(self, cause: bytes) -> None:
        from router.redis.redis_client import connect

        async with asyncio.timeout(WITHIN_S), connect(self.redis_url, decode=False) as redis:
            await redis.set(self.key, cause, ex=KEPT_S)
