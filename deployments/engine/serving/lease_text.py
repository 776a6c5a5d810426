"""The signed text of a replica's lease, which stays the same while nothing changes.

An idle replica then renews its lease by a cheap comparison, and gateways do not have to parse it
again.
"""

from __future__ import annotations

import msgspec

from router.board.load import ReplicaLoad
from router.redis.lease_signature import LeaseSigner


class LeaseText:
    """The text of one replica. Pass every snapshot to `of`, in the order of their sequences."""

    def __init__(self, signer: LeaseSigner) -> None:
        self._signer = signer
        self._load: ReplicaLoad | None = None
        self._text = ""
        self._newest = 0

    def of(self, load: ReplicaLoad) -> str:
        """Return the text to publish for this snapshot.

        It is the previous one if only the sequence differs, and if no answer carried a report in
        between: gateways use the highest sequence, so such a report must be replaced.
        """
        last, follows = self._load, load.sequence == self._newest + 1
        self._newest = load.sequence
        if last is None or not follows:
            unchanged = False
        else:
            unchanged = msgspec.structs.replace(load, sequence=last.sequence) == last
        if not unchanged:
            self._load = load
            self._text = self._signer.signed(load.slot, load.to_json())
        return self._text
