"""Signs what a replica says of itself in Redis, so that who can write there cannot be believed.

    {..., "signature": "<keyed BLAKE2b of the pool, the slot and all before it>"}

A lease gives the address that prompts are sent to. It is JSON for whoever lacks the key, and
stands for one slot of one pool alone. One of the same incarnation may be put back in its place:
then a replica's load is old, and its address is still its own.
"""

from __future__ import annotations

import hmac
import json
from hashlib import blake2b

_BEFORE, _AFTER, _DIGEST_BYTES = ',"signature":"', '"}', 16
_TAIL = len(_BEFORE) + 2 * _DIGEST_BYTES + len(_AFTER)


class LeaseSigner:
    """Of one pool of the fleet that has this secret."""

    def __init__(self, engine_secret: str, pool: str) -> None:
        key = blake2b(engine_secret.encode(), person=b"antefix lease").digest()
        self._hash = blake2b(
            json.dumps(pool).encode(), key=key, digest_size=_DIGEST_BYTES, person=b"afx lease"
        )

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
