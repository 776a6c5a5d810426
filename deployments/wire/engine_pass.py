"""Passes that authenticate requests to an engine: keyed hashes of its address and a ticket or path.

Each pass opens one engine. A pass with a ticket is for the request with that ticket. A pass without
one needs no place on the engine. Gateways send such passes for one path only, such as `/v1/models`,
so a pass read on the network is useless for other paths. Both ends derive passes from the fleet's
engine secret, which is never sent. A pass takes one or two microseconds.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from deployments.wire.headers import PASS_HEADER, TICKET_HEADER


class EnginePasses:
    def __init__(self, engine_secret: str) -> None:
        """Raises ValueError: when the secret is empty, so that any client could derive passes."""
        if not engine_secret:
            raise ValueError("the fleet's engine secret is empty")
        key = blake2b(engine_secret.encode(), person=b"antefix pass").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx engine pass")

    def headers(self, url: str, ticket: str = "", path: str = "") -> dict[str, str]:
        """Return the headers for a request to the engine at `url`: for a ticket, or one path.

        With neither, the pass opens the whole API without a place. Only tools with the secret, such
        as `antefix calibrate`, send it.
        """
        opened = f"ticket {ticket}" if ticket else f"path {path}"
        headers = {PASS_HEADER: self._pass(url, opened)}
        return headers | ({TICKET_HEADER: ticket} if ticket else {})

    def opens(self, given: bytes, url: str, ticket: str, path: str) -> bool:
        """Return whether `given` opens `path` of the engine at `url`, with this ticket."""
        ways = [f"ticket {ticket}"] if ticket else [f"path {path}", "path "]
        return any(hmac.compare_digest(given, self._pass(url, way).encode()) for way in ways)

    def _pass(self, url: str, opened: str) -> str:
        hash_ = self._hash.copy()
        # unambiguous, because addresses have no space
        hash_.update(f"{url} {opened}".encode("utf-8", "surrogateescape"))
        return hash_.hexdigest()
