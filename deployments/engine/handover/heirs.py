"""Which replicas hand prefixes over, and to which others."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from router.board.load import ReplicaLoad
from router.index.hot_prefixes import HotPrefix
from router.index.index import Depths

# A replica asks this many others, or gives to them.
MOST_OTHERS = 8


def sources_of(loads: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
    """Return the replicas that a new one asks: first those that leave, whose cache ends."""
    leaving = [load for load in loads if load.is_leaving]
    staying = [load for load in loads if not load.is_leaving]
    return [*leaving, *random.sample(staying, len(staying))][:MOST_OTHERS]


def heirs_of(loads: Sequence[ReplicaLoad]) -> list[ReplicaLoad]:
    """Return the replicas that stay, those with the least to do first."""
    staying = [load for load in loads if not load.is_leaving]
    return sorted(staying, key=lambda load: load.queue.prefill_tokens)


def shares(
    prefixes: Sequence[tuple[HotPrefix, Depths]], staying: Sequence[ReplicaLoad]
) -> Mapping[int, list[HotPrefix]]:
    """Return which prefixes each slot takes over: each that no staying replica has goes where the
    least is waiting. The tokens to pull count twice, because they take time and memory.

    A prefix comes with the number of its leading segments that each slot has.
    """
    work = {load.slot: load.queue.prefill_tokens for load in staying[:MOST_OTHERS]}
    given: dict[int, list[HotPrefix]] = {load.slot: [] for load in staying}
    promised: dict[int, set[bytes]] = {slot: set() for slot in work}
    for prefix, depths in prefixes:
        count = len(prefix.keys)
        if any(depths.get(load.slot, 0) >= count for load in staying):
            continue
        missing = {}
        for slot, keys in promised.items():
            held = max(depths.get(slot, 0), leading(prefix.keys, keys.__contains__))
            missing[slot] = (count - held) * prefix.length // count
        slot = min(work, key=lambda one: work[one] + 2 * missing[one])
        work[slot] += missing[slot]
        given[slot].append(prefix)
        promised[slot].update(prefix.keys)
    return given


def leading(keys: Sequence[bytes], has: Callable[[bytes], bool]) -> int:
    """Return the number of leading keys that it has."""
    return next((index for index, key in enumerate(keys) if not has(key)), len(keys))
