"""Who comes first: the routing policies, side by side.

Each ranks all candidates, best first, so that the rest are there when the best cannot take the
request, and breaks the ties it has left at random. Ranking is pure but for what `round_robin`
remembers; no policy raises, none leaves a candidate out. To add one, write it, name it in
PolicyName and put it in POLICIES: the fleet file, the header and the metrics know it from there.
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


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """What is known of a request: its prompt's length, its segment keys (empty: unknown, or
    shorter than a segment), and the session it says it belongs to. `signal`: the index answered.
    `needs_trial`: what its answer has to keep to may need a trial by the engine first.
    """

    prompt_tokens: int
    keys: tuple[bytes, ...] = ()
    session: str | None = None
    signal: bool = True
    needs_trial: bool = False


# What the times are called in explanations.
_IN_JSON = {
    "predicted_ttft_s": "predicted_ttft",
    "raw_ttft_s": "raw_ttft",
    "wait_s": "wait",
    "step_under_way_s": "step_under_way",
    "crowding_s": "crowding",
    "trial_wait_s": "trial_wait",
}


class Candidate(msgspec.Struct, frozen=True, gc=False, rename=_IN_JSON):
    """One replica as one request sees it; the reasons for its rank.

    Loads are those of `router.load.ReplicaLoad`, with what was placed since.
    """

    replica_id: str
    url: str
    slot: int
    incarnation: str
    cached_tokens: int
    """Tokens of the prompt that are cached there, by the index or by what was announced."""
    confirmed_tokens: int
    """Those of them that the index confirms."""
    predicted_ttft_s: float
    """Seconds from now to the first token: `raw_ttft_s`, corrected by what was observed lately."""
    raw_ttft_s: float
    """What `cost.predict_ttft` says."""
    wait_s: float
    """Of `raw_ttft_s`, the part before the request's own prefill begins; 0 where nobody waits."""
    score: float
    """What `prefix` ranks by (`cost.score` and `crowding_s`): uncorrected seconds."""
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
    """Engines of its node that have requests, itself included as if it had this one; 0: no other
    is on its node."""
    step_under_way_s: float = 0.0
    """Of `raw_ttft_s`, what is left of the step that the engine is in."""
    crowding_s: float = 0.0
    """Of `score`, by how much later first tokens come on a node whose cores are all at work."""
    trial_wait_s: float = 0.0
    """Of `raw_ttft_s`, the wait for a trial of its constraint. Others do not wait behind it."""

    @property
    def requests(self) -> int:
        return self.waiting + self.running


class Policy(Protocol):
    name: str

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        """All candidates, best first."""
        ...


class Prefix:
    """Where the request costs least: by the wait, by what is cached, and by what is popular.

    Costs within the noise of a prediction are equal: there the replica with the fewest requests
    wins, then the one that was given fewest lately. So with nothing to reuse this is
    `least_loaded`, and a prefix that is cheap to have everywhere is spread evenly. Without the
    index, equal replicas take turns by the prompt's first segment, so that prefixes still gather.
    """

    name = "prefix"
    # A prediction is no better than this, and the engine step under way is half over on average.
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


class Random:
    name = "random"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        return rng.sample(candidates, len(candidates))


class RoundRobin:
    """In the order of the replica ids, from a random start: gateways do not go in step."""

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
        self._last = ordered[start].replica_id
        return ordered[start:] + ordered[:start]


class LeastLoaded:
    """Fewest requests, then the shortest queue in tokens."""

    name = "least_loaded"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.requests, c.queued_prefill_tokens, rng.random()))


class PowerOfTwo:
    """The less loaded of two at random."""

    name = "power_of_two"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        shuffled = rng.sample(candidates, len(candidates))
        two = LeastLoaded().rank(request, shuffled[:2], rng)
        return two + shuffled[2:]


class Session:
    """One replica for one session, by rendezvous hashing: a lost replica moves its sessions
    only. A request without a session goes where the load is least."""

    name = "session"

    def rank(
        self, request: PlacementRequest, candidates: Sequence[Candidate], rng: random.Random
    ) -> list[Candidate]:
        if request.session is None:
            return LeastLoaded().rank(request, candidates, rng)
        key = request.session.encode(errors="surrogatepass")
        return sorted(candidates, key=lambda c: rendezvous(key, c.replica_id), reverse=True)


PolicyName = Literal["prefix", "random", "round_robin", "least_loaded", "power_of_two", "session"]
POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (Prefix, Random, RoundRobin, LeastLoaded, PowerOfTwo, Session)
    }
)
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)


def make_policy(name: str) -> Policy:
    """A policy of its own state. Raises ValueError for a name that is none of POLICY_NAMES."""
    if name not in POLICIES:
        raise ValueError(f"unknown policy {name!r}: it must be one of {', '.join(POLICY_NAMES)}")
    return POLICIES[name]()


def rendezvous(key: bytes, replica_id: str) -> int:
    """A replica's weight for a key; the same in every gateway. The highest has the key."""
    digest = hashlib.blake2b(key + b"@" + replica_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


# How far above the mean a replica's requests may be for keys still to gather there.
GATHER_SHARE, GATHER_REQUESTS = 1.25, 1.0


def gathered(
    key: bytes | None,
    candidates: Sequence[Candidate],
    requests: Callable[[Candidate], float],
    rng: random.Random,
) -> list[Candidate]:
    """By rendezvous hashing of the key with bounded loads: those with clearly more requests
    than the mean come last, fewest first. Without a key at random."""
    mean = sum(map(requests, candidates)) / max(1, len(candidates))
    limit = GATHER_SHARE * mean + GATHER_REQUESTS

    def place(candidate: Candidate) -> tuple[float, float]:
        count = requests(candidate)
        weight = rng.random() if key is None else -rendezvous(key, candidate.replica_id)
        return (count if count > limit else 0.0, weight)

    return sorted(candidates, key=place)
