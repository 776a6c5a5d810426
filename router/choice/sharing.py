"""How engines of one node slow each other down.

Engines on the same cores, or on one GPU, take longer while others of their node work. The effect
depends on the hardware and is not reported. So predictions use a factor learned for each number of
engines that work at once; with separate GPUs, all factors stay about 1. The choice does not use the
learned factors, which may be chance. It counts the engines that a node's cores compute at full
speed, as the engines report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from router.board.load import ReplicaLoad

# Number of observations that count, for each number of engines. Before the first one, PRIOR
# observations are assumed, from other numbers of engines.
MEMORY, PRIOR = 32, 1
# Logarithms: the largest effect of one observation, and of all together.
MAX_SURPRISE, MAX_LOG = 1.0, 3.0
# More working engines on a node count as this many.
MOST_WORKING = 64


class NodeSharing:
    """Factors by the number of engines of a node that work at once, including the request's; 0: it
    has the node to itself, and shares nothing."""

    def __init__(self) -> None:
        self._logs: dict[int, float] = {}
        self._seen: Counter[int] = Counter()
        # computed from the logarithms once: each decision needs every replica's
        self._factors: dict[int, float] = {}

    def factor(self, working: int) -> float:
        """Return the time of a first token there relative to the mean."""
        if (known := self._factors.get(working)) is None:
            known = self._factors[working] = math.exp(self._log(min(working, MOST_WORKING)))
        return known

    def observe(self, working: int, times: float) -> None:
        """Record that a first token took `times` the time expected with the factor; above 0."""
        if not working:
            return
        working = min(working, MOST_WORKING)
        before = self._log(working)
        self._seen[working] = min(self._seen[working] + 1, MEMORY - PRIOR)
        surprise = max(-MAX_SURPRISE, min(MAX_SURPRISE, math.log(times)))
        moved = before + surprise / (self._seen[working] + PRIOR)
        self._logs[working] = max(-MAX_LOG, min(MAX_LOG, moved))
        self._factors.clear()

    def _log(self, working: int) -> float:
        """Return the logarithm of a new number's factor: that of the nearest known one."""
        if not working or not self._logs:
            return 0.0
        if working not in self._logs:
            working = min(self._logs, key=lambda known: abs(known - working))
        return self._logs[working]


def working_on_nodes(loads: Mapping[str, ReplicaLoad]) -> list[int]:
    """Return, for each replica, how many engines of its node would work if it had one more request,
    including itself.

    0 if no other is on its node, or if that is unknown.
    """
    there = Counter(load.node_ip for load in loads.values())
    if len(there) == len(loads):
        return [0] * len(loads)
    busy = Counter(
        load.node_ip for load in loads.values() if load.queue.waiting or load.queue.running
    )
    return [
        busy[load.node_ip] + (not (load.queue.waiting or load.queue.running))
        if load.node_ip and there[load.node_ip] > 1
        else 0
        for load in loads.values()
    ]


def at_work_on_nodes(loads: Mapping[str, ReplicaLoad]) -> dict[str, list[ReplicaLoad]]:
    """Return, by node, the engines at work on shared cores; empty if there are none."""
    at_work: dict[str, list[ReplicaLoad]] = {}
    for load in loads.values():
        if load.engines_at_once and load.node_ip and (load.queue.waiting or load.queue.running):
            at_work.setdefault(load.node_ip, []).append(load)
    return at_work
