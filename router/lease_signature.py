"""Signs what a replica says of itself in Redis, so that who can write there cannot be believed.

    {..., "signature": "<keyed BLAKE2b of the lease's key and all before it>"}

A lease gives the address that prompts are sent to. It is JSON for whoever lacks the key, and
stands for one slot of one pool alone. One of the same incarnation may be put back in its place:
then a replica's load is old, and its address is still its own.
"""

from __future__ import annotations

import hmac

from router import redis_keys
from router.signature import Signer

_BEFORE, _AFTER, _DIGITS = ',"signature":"', '"}', 32
_TAIL = len(_BEFORE) + _DIGITS + len(_AFTER)


class LeaseSigner:
    """Signs and verifies the leases of one pool."""

    def __init__(self, signer: Signer, pool: str) -> None:
        self._hash = signer.hash_of(redis_keys.key(pool, "slot"))

    def signed(self, slot: int, snapshot: str) -> str:
        """`snapshot` is a JSON object that is not empty."""
        return snapshot[:-1] + self._tail(slot, snapshot)

    def is_genuine(self, slot: int, lease: str) -> bool:
        """Whether a replica of this fleet wrote it for this slot. Never raises."""
        tail = self._tail(slot, lease[:-_TAIL] + "}")
        # as bytes: what stands in Redis may be anything
        given = lease[-_TAIL:].encode("utf-8", "surrogatepass")
        return hmac.compare_digest(given, tail.encode())

    def _tail(self, slot: int, snapshot: str) -> str:
        hash_ = self._hash.copy()
        hash_.update(b"%d " % slot + snapshot.encode("utf-8", "surrogatepass"))
        return f"{_BEFORE}{hash_.hexdigest()}{_AFTER}"
