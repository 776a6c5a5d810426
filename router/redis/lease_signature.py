"""Signatures of replicas' leases in Redis, so that other writers are not trusted.

    {..., "signature": "<keyed BLAKE2b of the lease's key and all before it>"}

A lease contains the address to which prompts are sent. It is readable JSON without the key, and
valid for one slot of one pool only. An earlier lease of the same incarnation may be restored in its
place: then the replica's load is old, and its address is still correct.
"""

from __future__ import annotations

import hmac

from router.redis import redis_keys
from router.redis.signature import Signer

_BEFORE, _AFTER, _DIGITS = ',"signature":"', '"}', 32
_TAIL = len(_BEFORE) + _DIGITS + len(_AFTER)


class LeaseSigner:
    """Signs and verifies the leases of one pool."""

    def __init__(self, signer: Signer, pool: str) -> None:
        self._hash = signer.hash_of(redis_keys.key(pool, "slot"))

    def signed(self, slot: int, snapshot: str) -> str:
        """Return the signed lease. `snapshot` is a non-empty JSON object."""
        return snapshot[:-1] + self._tail(slot, snapshot)

    def is_genuine(self, slot: int, lease: str) -> bool:
        """Return whether a replica of this fleet wrote it for this slot. Never raises."""
        tail = self._tail(slot, lease[:-_TAIL] + "}")
        # as bytes: the text in Redis may be anything
        given = lease[-_TAIL:].encode("utf-8", "surrogatepass")
        return hmac.compare_digest(given, tail.encode())

    def _tail(self, slot: int, snapshot: str) -> str:
        hash_ = self._hash.copy()
        hash_.update(b"%d " % slot + snapshot.encode("utf-8", "surrogatepass"))
        return f"{_BEFORE}{hash_.hexdigest()}{_AFTER}"
