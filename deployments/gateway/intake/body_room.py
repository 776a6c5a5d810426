"""Decides whether a gateway's memory has room for another piece of a request's body.

All bodies together use at most `gateway.max_bodies_bytes`. While other tenants have keys, a tenant
may use three quarters of what the others leave, so another tenant always finds room. A tenant's
only body is not limited by this share. A further sixteenth is reserved for small bodies.
"""

from __future__ import annotations

from dataclasses import dataclass

# A body up to this size is small: it is parsed at once, and may use the reserve.
SMALL_BODY_BYTES = 65536
SHARE = 0.75
RESERVE = 1 / 16


@dataclass(frozen=True)
class Held:
    """Bytes in memory: of one body so far, of all its tenant's bodies, and of all bodies."""

    body: int
    tenant: int
    all: int


def has_room(held: Held, size: int, most: int, is_only_tenant: bool) -> bool:
    """Return whether `size` more bytes of the body fit, if all bodies may use `most` bytes."""
    if held.body + size <= SMALL_BODY_BYTES:
        most += int(most * RESERVE)
    if held.all + size > most:
        return False
    if is_only_tenant or held.tenant == held.body:
        return True
    others = held.all - held.tenant
    return held.tenant + size <= SHARE * (most - others)
