"""Who gets how many of the GPUs that several pools share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuRequest:
    """What one pool would have, in replicas of `gpus` GPUs each.

    `minimum` <= `demand` (to take traffic) <= `target` (warm ones included).
    """

    minimum: int
    demand: int
    target: int
    gpus: float


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
