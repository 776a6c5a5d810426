"""How much of a gateway's memory one more piece of a request's body may take.

Together, bodies have at most `gateway.max_bodies_bytes`. While other tenants have keys, one tenant
has at most three quarters of what the others leave, so there is always room for a newcomer. One
body of each tenant needs no share. Small bodies have a further sixteenth, which no large one takes.
"""

from __future__ import annotations

from dataclasses import dataclass

# Up to this size a body is small: it is parsed at once, and has the reserve as well.
SMALL_BODY_BYTES = 65536
SHARE = 0.75
RESERVE = 1 / 16


@dataclass(frozen=True)
class Held:
    """Bytes held of one body, of all its tenant's bodies, and of all bodies."""

    body: int
    tenant: int
    all: int


def has_room(held: Held, size: int, most: int, is_only_tenant: bool) -> bool:
    """Whether `size` bytes more of the body fit where all bodies may have `most` bytes."""
    if held.body + size <= SMALL_BODY_BYTES:
        most += int(most * RESERVE)
    if held.all + size > most:
        return False
    if is_only_tenant or held.tenant == held.body:
        return True
    others = held.all - held.tenant
    return held.tenant + size <= SHARE * (most - others)
