"""Distribution of the GPUs that several pools share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuRequest:
    """The request of one pool, in replicas of `gpus` GPUs each.

    `minimum` <= `demand` (active) <= `target` (including warm ones). The pool has `current`
    replicas, including starting ones, and `leaving` more that still use their GPUs.
    """

    minimum: int
    demand: int
    target: int
    gpus: float
    current: int = 0
    leaving: int = 0


def granted_now(requests: Mapping[str, GpuRequest], name: str, budget: float) -> int:
    """Return the replicas that one pool may have now, of its share by `grants`.

    It grows only into GPUs that no replica uses, because a leaving replica may take minutes.
    """
    share, own = grants(requests, budget), requests[name]
    used = sum(
        (max(share[other], request.current) + request.leaving) * request.gpus
        for other, request in requests.items()
        if other != name
    )
    fits = int((budget - used) // own.gpus) - own.leaving
    return min(share[name], max(own.current, fits))


def grants(requests: Mapping[str, GpuRequest], budget: float) -> dict[str, int]:
    """Return the replicas of each pool: at most its request, and at most `budget` GPUs in all.

    Each pool first gets its minimum. Then active replicas are assigned one by one, each to the pool
    with the smallest share of its demand. Warm ones follow in the same way. So a pool in need takes
    another's warm replicas before any that serves. Names break ties.
    """
    granted = dict.fromkeys(requests, 0)
    free = budget
    for part in ("minimum", "demand", "target"):
        goals = {name: getattr(request, part) for name, request in requests.items()}
        while wanting := [
            name
            for name, request in requests.items()
            if granted[name] < goals[name] and request.gpus <= free
        ]:
            needy = min(wanting, key=lambda name: (granted[name] / goals[name], name))
            granted[needy] += 1
            free -= requests[needy].gpus
    return granted
