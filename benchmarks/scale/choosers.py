"""Other ways to choose a replica. Each has better information than it would have in production.

random             any replica;
least_loaded       fewest requests, counted exactly and at once;
consistent_hash    by the prompt's first block on a ring of virtual nodes, with bounded loads;
                   a replica with a quarter more requests than the mean is skipped;
approximate_tree   each gateway remembers where it sent which prefix, as much as all caches hold; a
                   third of the prompt must be known; where loads are uneven, the replica with the
                   fewest requests of this gateway is chosen;
exact_and_load     twice the cached share of the prompt, minus the replica's requests divided by the
                   most of any, from exact caches and loads; as llm-d combines its precise prefix
                   scorer with its load scorer;
oracle             most of the prompt cached, regardless of the queue; of equals, fewest requests
"""

from __future__ import annotations

import random
from abc import abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType

from benchmarks.scale.fleet import Router, SimulatedReplicas, Visit
from simulator.traces import Request

VIRTUAL_NODES = 100
BOUND = 1.25
# The weight of a prompt that is cached whole; the replica with most requests has a weight of 1.
CACHED_WEIGHT = 2.0
# The known share of a prompt from which the tree decides; the most uneven loads at which it does.
TREE_SHARE, UNEVEN_REQUESTS, UNEVEN_RATIO = 0.3, 64, 1.5


class Chooser(Router):
    def __init__(self, replicas: SimulatedReplicas, gateways: int, seed: int) -> None:
        self._replicas = replicas
        self._gateways = gateways
        self._rng = random.Random(f"{type(self).__name__}/{seed}")

    async def choose(self, number: int, request: Request, gateway: int, now: float) -> int:
        return self.choice(request, gateway)

    @abstractmethod
    def choice(self, request: Request, gateway: int) -> int:
        """The replica for a request."""

    def _fewest(self, requests: Sequence[int], among: Sequence[int] | None = None) -> int:
        candidates = range(len(requests)) if among is None else among
        least = min(requests[replica] for replica in candidates)
        return self._rng.choice([r for r in candidates if requests[r] == least])


class AnyReplica(Chooser):
    def choice(self, request: Request, gateway: int) -> int:
        return self._rng.randrange(len(self._replicas))


class FewestRequests(Chooser):
    def choice(self, request: Request, gateway: int) -> int:
        return self._fewest(self._replicas.requests)


class ConsistentHash(Chooser):
    def __init__(self, replicas: SimulatedReplicas, gateways: int, seed: int) -> None:
        super().__init__(replicas, gateways, seed)
        self._ring = sorted(
            (_point(b"%d/%d" % (replica, node)), replica)
            for replica in range(len(replicas))
            for node in range(VIRTUAL_NODES)
        )
        self._points = [point for point, _ in self._ring]

    def choice(self, request: Request, gateway: int) -> int:
        requests = self._replicas.requests
        limit = BOUND * (sum(requests) + 1) / len(requests)
        first = request.blocks[0] if request.blocks else self._rng.getrandbits(64)
        at = bisect_right(self._points, _point(b"%d" % first))
        passed: set[int] = set()
        for step in range(len(self._ring)):
            replica = self._ring[(at + step) % len(self._ring)][1]
            if requests[replica] <= limit:
                return replica
            passed.add(replica)
            if len(passed) == len(requests):
                break
        return self._fewest(requests)


class ApproximateTree(Chooser):
    def __init__(self, replicas: SimulatedReplicas, gateways: int, seed: int) -> None:
        super().__init__(replicas, gateways, seed)
        remembered = len(replicas) * replicas.hardware.blocks
        self._trees = [OwnPlacements(remembered) for _ in range(gateways)]
        self._own = [[0] * len(replicas) for _ in range(gateways)]

    def choice(self, request: Request, gateway: int) -> int:
        own, tree = self._own[gateway], self._trees[gateway]
        keys = [b"%d" % block for block in request.blocks]
        depths = tree.depths(keys)
        deepest = max(depths.values(), default=0)
        known = deepest * self._replicas.hardware.block_tokens / request.prompt_tokens
        least, most = min(own), max(own)
        if (most - least > UNEVEN_REQUESTS and most > UNEVEN_RATIO * least) or known < TREE_SHARE:
            replica = self._fewest(own)
        else:
            replica = self._fewest(own, [r for r, depth in depths.items() if depth == deepest])
        own[replica] += 1
        tree.placed(keys, replica)
        return replica

    def ended(self, visit: Visit) -> None:
        self._own[visit.gateway][visit.replica] -= 1


class ExactAndLoad(Chooser):
    def choice(self, request: Request, gateway: int) -> int:
        requests = self._replicas.requests
        most, size = max(requests) or 1, self._replicas.hardware.block_tokens
        score = [
            CACHED_WEIGHT * engine.cached_blocks(request.blocks) * size / request.prompt_tokens
            - requests[replica] / most
            for replica, engine in enumerate(self._replicas.engines)
        ]
        best = max(score)
        return self._rng.choice([replica for replica, of in enumerate(score) if of == best])


class CacheOracle(Chooser):
    def choice(self, request: Request, gateway: int) -> int:
        depths = [engine.cached_blocks(request.blocks) for engine in self._replicas.engines]
        deepest = max(depths)
        among = [replica for replica, depth in enumerate(depths) if depth == deepest]
        return self._fewest(self._replicas.requests, among)


ORACLE = "oracle"
CHOOSERS: Mapping[str, Callable[[SimulatedReplicas, int, int], Chooser]] = MappingProxyType(
    {
        "random": AnyReplica,
        "least_loaded": FewestRequests,
        "consistent_hash": ConsistentHash,
        "approximate_tree": ApproximateTree,
        "exact_and_load": ExactAndLoad,
        ORACLE: CacheOracle,
    }
)


def _point(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big")


class OwnPlacements:
    """What a gateway without a shared index knows: where it sent each prefix, the latest ones."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._slots: OrderedDict[bytes, set[int]] = OrderedDict()

    def depths(self, keys: Sequence[bytes]) -> dict[int, int]:
        depths: dict[int, int] = {}
        for depth, key in enumerate(keys):
            known = self._slots.get(key, set())
            still = [slot for slot in known if depths.get(slot, 0) == depth]
            if not still:
                break
            depths.update(dict.fromkeys(still, depth + 1))
        return depths

    def placed(self, keys: Sequence[bytes], slot: int) -> None:
        for key in keys:
            self._slots.setdefault(key, set()).add(slot)
            self._slots.move_to_end(key)
        while len(self._slots) > self._max_segments:
            self._slots.popitem(last=False)
