"""What opens an engine's port: a keyed hash of its address and of the ticket, never the secret.

So a false address is told nothing that opens another one. Both ends make it from the fleet's
engine secret; it costs each a microsecond or two.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from deployments.wire.headers import PASS_HEADER, TICKET_HEADER


class EnginePasses:
    def __init__(self, engine_secret: str) -> None:
        """Raises ValueError without a secret: every port would open to everybody."""
        if not engine_secret:
            raise ValueError("the fleet's engine secret is empty")
        key = blake2b(engine_secret.encode(), person=b"antefix pass").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx engine pass")

    def headers(self, url: str, ticket: str = "") -> dict[str, str]:
        """Let a request into the engine at `url`; without a ticket it takes no slot there."""
        headers = {PASS_HEADER: self._pass(url, ticket)}
        return headers | ({TICKET_HEADER: ticket} if ticket else {})

    def opens(self, given: bytes, url: str, ticket: str) -> bool:
        return hmac.compare_digest(given, self._pass(url, ticket).encode())

    def _pass(self, url: str, ticket: str) -> str:
        hash_ = self._hash.copy()
        # no address has a space
        hash_.update(f"{url} {ticket}".encode("utf-8", "surrogateescape"))
        return hash_.hexdigest()
