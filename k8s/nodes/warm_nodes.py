"""The number of placeholder pods that keep GPU nodes warm for each pool.

`demand` already includes the load expected once a new replica could serve. A node takes longer to
start than a replica, so room is kept for the same growth once more: pods for `forecast / arrivals x
demand` replicas and the warm ones, minus the existing pods. The number grows at once, and shrinks
by one after it was too large for HOLD_S. It never exceeds the free GPUs of the engines, and is 0
while an engine's pod waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

HOLD_S = 300.0
# In replicas: for less growth, no node is added.
SLACK = 0.1


@dataclass(frozen=True)
class WarmNodesPool:
    """The chart's settings of a pool that is autoscaled on GPUs."""

    name: str
    pods_per_replica: int
    max_replicas: int
    warm_replicas: int
    gpus_per_pod: int


@dataclass(frozen=True)
class Expected:
    """The autoscaler's decision: active replicas; requests per second, now and soon."""

    demand: int
    arrivals: float = 0.0
    forecast: float | None = None


@dataclass(frozen=True)
class PodCounts:
    """A pool's pods that exist or start, and its placeholders; `expected` None: unknown."""

    pods: int
    placeholders: int
    expected: Expected | None = None


@dataclass(frozen=True)
class WarmNodesLimits:
    """Limits of all pools: placeholders per pool, and GPUs that the fleet's budget leaves free."""

    max_per_pool: int
    free_gpus: float
    engine_waits: bool = False


@dataclass(frozen=True)
class WarmNodesDecision:
    """Placeholders by pool, and since when pools have too many."""

    placeholders: Mapping[str, int]
    too_many_since: Mapping[str, float]


def decide(
    pools: Sequence[WarmNodesPool],
    seen: Mapping[str, PodCounts],
    limits: WarmNodesLimits,
    too_many_since: Mapping[str, float],
    now: float,
) -> WarmNodesDecision:
    """Compute the placeholders. `now` and `too_many_since`: seconds of any monotonic clock."""
    if limits.engine_waits:
        return WarmNodesDecision({pool.name: 0 for pool in pools}, {})
    counts, since = {}, dict(too_many_since)
    for pool in pools:
        of = seen[pool.name]
        room = _room(pool, of.pods, limits.max_per_pool)
        wanted = min(_wanted(pool, of), room)
        kept = of.placeholders
        if wanted >= kept:
            kept = wanted
            since.pop(pool.name, None)
        elif now - since.setdefault(pool.name, now) >= HOLD_S:
            kept -= 1
            since[pool.name] = now
        counts[pool] = min(kept, room)
    return WarmNodesDecision(_within(counts, limits.free_gpus), since)


def _wanted(pool: WarmNodesPool, of: PodCounts) -> int:
    if of.expected is None:
        return of.placeholders
    replicas = _replicas_soon(of.expected, pool.max_replicas) + pool.warm_replicas
    return max(0, replicas * pool.pods_per_replica - of.pods)


def _replicas_soon(expected: Expected, most: int) -> int:
    """Return the active replicas after the expected growth, applied once more."""
    demand, arrivals, forecast = expected.demand, expected.arrivals, expected.forecast
    if forecast is None or not 0 < arrivals < forecast:
        return demand
    # the minimum first: a quotient may be infinite
    return ceil(min(most, forecast * demand / arrivals) - SLACK)


def _room(pool: WarmNodesPool, pods: int, max_per_pool: int) -> int:
    most_pods = pool.max_replicas * pool.pods_per_replica
    return max(0, min(max_per_pool, most_pods - pods))


def _within(wanted: Mapping[WarmNodesPool, int], free_gpus: float) -> dict[str, int]:
    """Distribute the GPUs in turns, while they last."""
    granted = {pool.name: 0 for pool in wanted}
    for turn in range(max(wanted.values(), default=0)):
        for pool, count in wanted.items():
            if turn < count and turn == granted[pool.name] and pool.gpus_per_pod <= free_gpus:
                granted[pool.name] += 1
                free_gpus -= pool.gpus_per_pod
    return granted
