"""Decides whether a tenant's requests are the likely cause of the latest deaths of engines.

Such a tenant gets one request at a time for some minutes. So its requests cost at most one engine
at a time. A request that was only nearby is never a cause: a death counts only
if no other tenant's request was lost with the same replica.

    a replica ran out of memory with requests of this tenant only
    two replicas were lost with one and the same request, and with no other
    replicas were lost with this tenant's requests only, at two different times, and each of these
    requests lost every engine that it ran on
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

# Deaths of one request's engines that make it the likely cause.
FATAL_DEATHS = 2


class LossKind(Enum):
    """How a request lost an engine."""

    NEARBY = b"n"
    """It ran there, and may continue elsewhere."""
    FATAL = b"f"
    """It lost every engine that it ran on, this one included."""
    MEMORY = b"m"
    """The replica ran out of memory before the request had a token."""


@dataclass(frozen=True)
class Loss:
    """A request that was running in a replica when that was lost. The names are hashes; `until`:
    when it is forgotten, in seconds of the caller's clock."""

    owner: bytes
    kind: LossKind
    replica: bytes
    request: bytes
    until: float


def is_likely_cause(owner: bytes, losses: Collection[Loss], together_s: float) -> bool:
    """Return whether the requests of this tenant are the likely cause of the losses.

    Losses within `together_s` seconds may have one cause.
    """
    others = {loss.replica for loss in losses if loss.owner != owner}
    alone = [loss for loss in losses if loss.owner == owner and loss.replica not in others]
    if any(loss.kind is LossKind.MEMORY for loss in alone):
        return True
    fatal = [loss for loss in alone if loss.kind is LossKind.FATAL]
    if not fatal:
        return False
    requests: dict[bytes, set[bytes]] = {}
    for loss in alone:
        requests.setdefault(loss.replica, set()).add(loss.request)
    sole = {loss.replica for loss in fatal if len(requests[loss.replica]) == 1}
    times = [loss.until for loss in fatal]
    return len(sole) >= FATAL_DEATHS or max(times) - min(times) > together_s
