"""The routing policies.

Each ranks all candidates, best first, so that the others are available if the best cannot take the
request. Remaining ties are broken at random. Ranking is pure; `round_robin` remembers the replica
that a request went to. Policies never raise and never omit a candidate. To add one, write it, name
it in PolicyName and put it in POLICIES: the fleet file, the header and the metrics know it from
there.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, get_args

import msgspec

from router.choice.cost import Elsewhere, WayName


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The known facts of a request: its prompt's length, its segment keys (empty: unknown, or
    shorter than a segment), and its session.

    `signal`: the index answered. `needs_trial`: its constraint may need a trial by the engine
    first. `adapter`: the engine's name for its LoRA adapter. `elsewhere`: who would compute its
    prompt in the prefill pool.
    """

    prompt_tokens: int
    keys: tuple[bytes, ...] = ()
    session: str | None = None
    signal: bool = True
    needs_trial: bool = False
    adapter: str | None = None
    elsewhere: Elsewhere | None = None


# Names of the times in explanations.
_IN_JSON = {
    "predicted_ttft_s": "predicted_ttft",
    "raw_ttft_s": "raw_ttft",
    "wait_s": "wait",
    "step_under_way_s": "step_under_way",
    "crowding_s": "crowding",
    "trial_wait_s": "trial_wait",
    "adapter_load_s": "adapter_load",
    "adapter_wait_s": "adapter_wait",
    "host_load_s": "host_load",
    "disk_load_s": "disk_load",
    "peer_load_s": "peer_load",
    "peer_id": "peer",
    "peer": "peer_address",
    "tier_wait_s": "tier_wait",
    "ready_s": "prefill",
    "prefill_load_s": "prefill_load",
    "prefill_id": "prefill_replica",
    "prefill_peer": "prefill_address",
    "way_ttfts_s": "ways",
}


class Candidate(msgspec.Struct, frozen=True, gc=False, rename=_IN_JSON):
    """One replica from the view of one request, with the reasons for its rank.

    Loads are those of `router.board.load.ReplicaLoad`, with later placements.
    """

    replica_id: str
    url: str
    slot: int
    incarnation: str
    cached_tokens: int
    """Tokens of the prompt that are cached there, by the index or by announcements."""
    confirmed_tokens: int
    """Those of them that the index confirms."""
    predicted_ttft_s: float
    """Seconds from now to the first token: `raw_ttft_s`, corrected by recent observations."""
    raw_ttft_s: float
    """The result of `cost.predict_ttft`."""
    wait_s: float
    """The part of `raw_ttft_s` before the request's own prefill; 0 without a queue."""
    score: float
    """The rank of `prefix` (`cost.score` and `crowding_s`): uncorrected seconds."""
    waiting: int
    running: int
    queued_prefill_tokens: int
    inter_token_latency: float
    """Seconds that an engine step takes now."""
    kv_use: float
    """Share of the KV cache that live requests use, 0 to 1."""
    placed_lately: float
    """Requests sent there in about the last half minute."""
    synced: bool
    working_on_node: int = 0
    """Engines of its node that have requests, including itself with this one; 0: no other is on its
    node."""
    step_under_way_s: float = 0.0
    """The part of `raw_ttft_s` that is the rest of the engine's current step."""
    crowding_s: float = 0.0
    """The part of `score` that is the delay of first tokens on a node whose cores are all busy."""
    trial_wait_s: float = 0.0
    """The part of `raw_ttft_s` that is the wait for a trial of its constraint. Others do not wait
    behind it."""
    adapter_load_s: float = 0.0
    """The part of `raw_ttft_s` that loads its LoRA adapter. Others wait meanwhile."""
    adapter_wait_s: float = 0.0
    """The part of `raw_ttft_s` that is the wait for a slot for its adapter. Others do not wait
    behind it."""
    host_tokens: int = 0
    """Tokens of the prompt that its host tier has after the cached ones. They are loaded, and then
    counted in `cached_tokens`, if that takes less time than to compute them."""
    host_load_s: float = 0.0
    """The part of `raw_ttft_s` that loads them; 0: they are computed, or there are none."""
    disk_tokens: int = 0
    """Tokens of the prompt that its disk tier has after those. They are read, and then counted in
    `cached_tokens`, if that takes less time than to compute them."""
    disk_load_s: float = 0.0
    """The part of `raw_ttft_s` that reads them; 0: they are computed, or there are none."""
    tier_wait_s: float = 0.0
    """The part of `raw_ttft_s` that waits for earlier loads from its tiers. Requests that load
    nothing do not wait for them."""
    way_ttfts_s: Mapping[WayName, float] = {}
    """`predicted_ttft_s` for each way to get the tokens of the prompt that it need not compute, the
    chosen one first; empty: there are none."""
    peer_tokens: int = 0
    """Tokens of the prompt after those in its cache and host tier that another replica has in its
    host tier. They are pulled, and then counted in `cached_tokens`, if that takes less time than to
    compute them, or to read from files."""
    peer_load_s: float = 0.0
    """The part of `raw_ttft_s` that pulls them; 0: they are not pulled, or there are none."""
    peer_id: str = ""
    """That replica; empty: no replica has such tokens."""
    peer: str = ""
    """The address of that replica's engine for pulls, as host:port."""
    prefill_tokens: int = 0
    """Tokens of the prompt after those in its cache and host tier that a replica of the prefill
    pool can compute. They are then pulled from there, and counted in `cached_tokens`, if that is
    the fastest way, or if the pool always does it."""
    ready_s: float = 0.0
    """The part of `raw_ttft_s` until that replica has computed the prompt; 0: it does not."""
    prefill_load_s: float = 0.0
    """The part of `raw_ttft_s` that pulls them; 0: they are not computed there, or there are
    none."""
    prefill_id: str = ""
    """That replica; empty: there is none."""
    prefill_peer: str = ""
    """The address of that replica's engine for pulls, as host:port."""

    @property
    def way(self) -> WayName | None:
        """How it gets the tokens of the prompt that it need not compute; None: there are none
        outside its cache."""
        return next(iter(self.way_ttfts_s), None)

    @property
    def other_way_ttft_s(self) -> float:
        """`predicted_ttft_s` for the next best way; 0: there is none."""
        return min(
            (ttft_s for way, ttft_s in self.way_ttfts_s.items() if way != self.way), default=0.0
        )

    @property
    def refuses_host(self) -> bool:
        """Whether the engine is to compute what its tiers have."""
        return self.host_tokens > 0 and self.host_load_s == 0.0

    @property
    def refuses_disk(self) -> bool:
        """Whether the engine is to compute what only its disk tier has."""
        return self.disk_tokens > 0 and self.disk_load_s == 0.0

    @property
    def pulls(self) -> bool:
        """Whether the engine is to pull what another replica has."""
        return self.peer_load_s > 0.0

    @property
    def prefills_elsewhere(self) -> bool:
        """Whether a replica of the prefill pool is to compute the prompt."""
        return self.prefill_load_s > 0.0

    @property
    def loaded_tokens(self) -> tuple[int, int, int]:
        """Return the tokens that it loads from its host tier, reads from its disk tier, and pulls
        from another replica, which may compute them first."""
        host = 0 if self.refuses_host else self.host_tokens
        disk = 0 if self.refuses_disk else self.disk_tokens
        pulled = self.peer_tokens if self.pulls else 0
        return host, disk, self.prefill_tokens if self.prefills_elsewhere else pulled

    @property
    def requests(self) -> int:
        return self.waiting + self.running


class Policy(Protocol):
    name: str

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        """Return all candidates, best first."""
        ...

    def took(self, replica_id: str) -> None:
        """Record that a request goes to this replica. A request may be ranked several times."""
        ...


class Memoryless:
    """A policy that remembers nothing."""

    def took(self, replica_id: str) -> None:
        pass


class Prefix(Memoryless):
    """Rank by cost: the wait, the cached tokens, and their popularity.

    Costs within the noise of a prediction are equal. Then the replica with the fewest requests
    wins, then the one with the fewest recent placements. So without reuse this is `least_loaded`,
    and a prefix that is cheap everywhere is spread evenly. Without the index, equal replicas take
    turns by the prompt's first segment, so that prefixes still gather.
    """

    name = "prefix"
    # The smallest error of a prediction. The running engine step is half over on average.
    noise_share, noise_s, noise_steps = 0.02, 0.001, 0.5

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        if not candidates:
            return []
        best = min(candidates, key=lambda c: c.score)
        noise = self.noise_share * best.score + self.noise_s
        limit = best.score + noise + self.noise_steps * best.inter_token_latency
        equal = [c for c in candidates if c.score <= limit]
        worse = [c for c in candidates if c.score > limit]
        worse.sort(key=lambda c: (c.score, rng.random()))
        if request.keys and not request.signal:
            return gathered(request.keys[0], equal, lambda c: c.requests, rng) + worse
        equal.sort(key=lambda c: (c.requests, c.placed_lately, rng.random()))
        return equal + worse


class Random(Memoryless):
    name = "random"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        return rng.sample(candidates, len(candidates))


class RoundRobin:
    """Rank in the order of the replica ids, from a random start, so that gateways differ."""

    name = "round_robin"

    def __init__(self) -> None:
        self._last: str | None = None

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        if not candidates:
            return []
        ordered = sorted(candidates, key=lambda c: c.replica_id)
        if self._last is None:
            start = rng.randrange(len(ordered))
        else:
            start = bisect_right([c.replica_id for c in ordered], self._last) % len(ordered)
        return ordered[start:] + ordered[:start]

    def took(self, replica_id: str) -> None:
        self._last = replica_id


class LeastLoaded(Memoryless):
    """Rank by fewest requests, then the shortest queue in tokens."""

    name = "least_loaded"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.requests, c.queued_prefill_tokens, rng.random()))


class AdapterAffinity(Memoryless):
    """Rank replicas with the request's LoRA adapter in memory first, then as `least_loaded`."""

    name = "adapter_affinity"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        ranked = LeastLoaded().rank(request, candidates, rng)
        return sorted(ranked, key=lambda c: c.adapter_load_s > 0.0)


class PowerOfTwo(Memoryless):
    """Rank the less loaded of two random replicas first."""

    name = "power_of_two"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        shuffled = rng.sample(candidates, len(candidates))
        two = LeastLoaded().rank(request, shuffled[:2], rng)
        return two + shuffled[2:]


class Session(Memoryless):
    """Keep one replica for one session, by rendezvous hashing: a lost replica moves only its
    sessions.

    A request without a session goes to the least load.
    """

    name = "session"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        if request.session is None:
            return LeastLoaded().rank(request, candidates, rng)
        key = request.session.encode(errors="surrogatepass")
        return sorted(candidates, key=lambda c: rendezvous(key, c.replica_id), reverse=True)


PolicyName = Literal[
    "prefix",
    "random",
    "round_robin",
    "least_loaded",
    "adapter_affinity",
    "power_of_two",
    "session",
]
POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            *(Prefix, Random, RoundRobin, LeastLoaded, AdapterAffinity, PowerOfTwo),
            Session,
        )
    }
)
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)


def make_policy(name: str) -> Policy:
    """Return a policy with separate state. Raises ValueError for a name that is not in
    POLICY_NAMES."""
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}: it must be one of {', '.join(POLICY_NAMES)}")
    return POLICIES[name]()


def rendezvous(key: bytes, replica_id: str) -> int:
    """Return a replica's weight for a key; the same in every gateway. The highest has the key."""
    digest = hashlib.blake2b(key + b"@" + replica_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


# How far above the mean a replica's requests may be before keys no longer gather there.
GATHER_SHARE, GATHER_REQUESTS = 1.25, 1.0


def gathered(
    key: bytes | None,
    candidates: Sequence[Candidate],
    requests: Callable[[Candidate], float],
    rng: random.Random,
) -> list[Candidate]:
    """Rank by rendezvous hashing of the key with bounded loads: replicas with clearly more requests
    than the mean come last, fewest first.

    Without a key, the order is random.
    """
    mean = sum(map(requests, candidates)) / max(1, len(candidates))
    limit = GATHER_SHARE * mean + GATHER_REQUESTS

    def place(candidate: Candidate) -> tuple[float, float]:
        count = requests(candidate)
        weight = rng.random() if key is None else -rendezvous(key, candidate.replica_id)
        return (count if count > limit else 0.0, weight)

    return sorted(candidates, key=place)
