"""Who gets how many of the GPUs that several pools share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuRequest:
    """What one pool would have, in replicas of `gpus` GPUs each.

    `minimum` <= `demand` (to take traffic) <= `target` (warm ones included). The pool has `current`
    replicas, those that start included, and `leaving` more that still use their GPUs.
    """

    minimum: int
    demand: int
    target: int
    gpus: float
    current: int = 0
    leaving: int = 0


def granted_now(requests: Mapping[str, GpuRequest], name: str, budget: float) -> int:
    """Replicas that one pool may have at this moment, of its share by `grants`.

    It grows only into GPUs that no replica uses: one that leaves may take minutes.
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
    """Replicas for each pool: never more than it requests, never more GPUs than `budget` together.

    First what each always has; then, one by one, replicas that take traffic, the next always to
    the pool that has the smallest share of its demand; then warm ones in the same way. So a pool
    in need takes the warm ones of another before any that serves. Names break ties.
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
