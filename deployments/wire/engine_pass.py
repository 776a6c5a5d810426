"""What opens an engine's port: a keyed hash of its address and of a ticket or a path.

Each pass opens one engine. One with a ticket is for the request that has that ticket. One without
takes no place on the engine: a gateway's is for one path, such as `/v1/models`, so that a pass seen
on the network opens nothing else. Both ends derive passes from the fleet's engine secret, which
never travels; a pass costs a microsecond or two.
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

    def headers(self, url: str, ticket: str = "", path: str = "") -> dict[str, str]:
        """Let a request into the engine at `url`, by a ticket, or to one path without a place.

        With neither, the pass opens the whole API without a place: for tools that have the secret,
        such as `antefix calibrate`. No gateway sends one.
        """
        opened = f"ticket {ticket}" if ticket else f"path {path}"
        headers = {PASS_HEADER: self._pass(url, opened)}
        return headers | ({TICKET_HEADER: ticket} if ticket else {})

    def opens(self, given: bytes, url: str, ticket: str, path: str) -> bool:
        """Whether `given` opens `path` of the engine at `url`, for the request with `ticket`."""
        ways = [f"ticket {ticket}"] if ticket else [f"path {path}", "path "]
        return any(hmac.compare_digest(given, self._pass(url, way).encode()) for way in ways)

    def _pass(self, url: str, opened: str) -> str:
        hash_ = self._hash.copy()
        # no address has a space
        hash_.update(f"{url} {opened}".encode("utf-8", "surrogateescape"))
        return hash_.hexdigest()
