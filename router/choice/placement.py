"""One decision: the target of a request, and the reason. A function of data: no I/O, no clock.

Reports of the replicas (loads), the index's confirmed tokens on each, and announcements become
candidates with a predicted time to first token; a policy ranks them. Without an answer from the
index it decides by load, and without loads (`place_blind`) by the last known state. Nothing here
raises.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from router.board.load import ReplicaLoad, ReplicaQueue
from router.board.recent import NO_TIERS, Recent, TierDepths
from router.choice import cost
from router.choice.cost import Elsewhere, TierTokens, TtftCorrection
from router.choice.policies import Candidate, PlacementRequest, Policy, gathered
from router.choice.sharing import at_work_on_nodes, working_on_nodes

BLIND = "blind"
_UNCORRECTED = TtftCorrection()


@dataclass(frozen=True)
class ShadowDecision:
    """The choice of a policy that is not followed.

    `regret_s`: how much later the followed choice's first token is predicted than the shadow's;
    below 0 the followed one is better.
    """

    policy: str
    replica_id: str
    cached_tokens: int
    predicted_ttft_s: float
    regret_s: float


@dataclass(frozen=True)
class Placement:
    """Candidates, best first. Empty if nothing is known: any live replica will do.

    `signal`: the index answered; `popularity`: see `Recent`.
    """

    ranked: tuple[Candidate, ...]
    policy: str = BLIND
    signal: bool = False
    prompt_tokens: int = 0
    popularity: float = 0.0
    shadow: ShadowDecision | None = None

    @property
    def replica_ids(self) -> tuple[str, ...]:
        return tuple(candidate.replica_id for candidate in self.ranked)

    @property
    def chosen(self) -> Candidate | None:
        return self.ranked[0] if self.ranked else None

    def candidate(self, replica_id: str) -> Candidate | None:
        """Return that replica, if it was one of the candidates."""
        return next((c for c in self.ranked if c.replica_id == replica_id), None)

    def preferring(self, index: int) -> Placement:
        """Return the same with the candidate at `index` as the chosen one."""
        if index == 0:
            return self
        others = (*self.ranked[:index], *self.ranked[index + 1 :])
        return dataclasses.replace(self, ranked=(self.ranked[index], *others))

    @property
    def best_cached_tokens(self) -> int:
        """The most confirmed tokens of the prompt at any candidate."""
        return max((candidate.confirmed_tokens for candidate in self.ranked), default=0)


def reusable_tokens(prompt_tokens: int, segment_tokens: int) -> int:
    """Return how much of a prompt can come from a cache: whole segments, never the last token.

    An engine computes at least the last token, because its output is the first new one. vLLM
    therefore reuses at most the whole blocks before it. This is exact, with one exception: for a
    prompt of whole segments, an engine with blocks shorter than a segment, or with a host tier,
    reuses up to a segment more.
    """
    if segment_tokens <= 0:
        return 0
    return max(0, prompt_tokens - 1) // segment_tokens * segment_tokens


def place(
    request: PlacementRequest,
    loads: Mapping[str, ReplicaLoad],
    depths: Mapping[int, int] | None,
    recent: Recent,
    policy: Policy,
    rng: random.Random,
    correction: TtftCorrection = _UNCORRECTED,
    shadow: Policy | None = None,
    tiers: TierDepths = NO_TIERS,
) -> Placement:
    """Rank the replicas for a request.

    `depths`: slot -> leading segments of the prompt that the index confirms; None: it did not
    answer. `tiers`: the same with those that a tier has after them. `recent` is the result
    of `RecentPlacements.about` for the same prompt and replicas. `shadow` decides on the same
    facts, is recorded and not followed.
    """
    if depths is None:
        request = dataclasses.replace(request, signal=False)
    candidates = _candidates(
        request.prompt_tokens,
        loads,
        depths or {},
        recent,
        correction=correction,
        needs_trial=request.needs_trial,
        adapter=request.adapter,
        tiers=tiers,
        elsewhere=request.elsewhere,
    )
    ranked = tuple(policy.rank(request, candidates, rng))
    return Placement(
        ranked=ranked,
        policy=policy.name,
        signal=request.signal,
        prompt_tokens=request.prompt_tokens,
        popularity=recent.popularity,
        shadow=_shadowed(ranked[0], shadow, shadow.rank(request, candidates, rng)[0])
        if shadow and ranked
        else None,
    )


def place_blind(
    request: PlacementRequest,
    last_known: Mapping[str, ReplicaLoad],
    in_flight: Mapping[str, int],
    rng: random.Random,
) -> Placement:
    """Rank replicas whose load is no longer reported.

    It uses rendezvous hashing of the session or of the prompt's first segment, so that related
    requests stay together. Replicas on which this gateway has clearly more requests than the mean
    come last. `in_flight`: replica id -> this gateway's own requests there.
    """
    loads = {
        replica_id: replace(
            load,
            queue=ReplicaQueue(in_flight.get(replica_id, 0), 0, 0),
            pace=replace(load.pace, inter_token_latency=0.0),
            cache=replace(load.cache, use=0.0, synced=False),
        )
        for replica_id, load in last_known.items()
    }
    candidates = _candidates(request.prompt_tokens, loads, {}, Recent(), _UNCORRECTED)
    key = request.keys[0] if request.keys else None
    if request.session is not None:
        key = request.session.encode(errors="surrogatepass")
    ranked = gathered(key, candidates, lambda candidate: candidate.waiting, rng)
    return Placement(tuple(ranked), prompt_tokens=request.prompt_tokens)


def _candidates(
    prompt_tokens: int,
    loads: Mapping[str, ReplicaLoad],
    depths: Mapping[int, int],
    recent: Recent,
    correction: TtftCorrection,
    needs_trial: bool = False,
    adapter: str | None = None,
    tiers: TierDepths = NO_TIERS,
    elsewhere: Elsewhere | None = None,
) -> list[Candidate]:
    confirmed = _cached_tokens(prompt_tokens, loads, depths)
    expected = _cached_tokens(prompt_tokens, loads, recent.depths)
    hosted = _cached_tokens(prompt_tokens, loads, tiers.host)
    written = _cached_tokens(prompt_tokens, loads, tiers.disk)
    popular_tokens = max([*confirmed, *hosted, *written], default=0)
    token_s = cost.tier_load_s(loads.values()) if elsewhere or any(tiers) else None
    # an adapter's blocks have other names in each engine
    may_pull = adapter is None and any(hosted)
    sources = _sources(prompt_tokens, loads, hosted) if may_pull else []
    price = cost.price(recent.popularity, recent.traffic_share, len(loads))
    placements = recent.placements
    at_work = at_work_on_nodes(loads)
    load_s = 0.0 if adapter is None else cost.adapter_load_s(loads.values())
    candidates = []
    for (replica_id, load), in_cache, expected_tokens, in_host, on_disk, working in zip(
        loads.items(), confirmed, expected, hosted, written, working_on_nodes(loads), strict=True
    ):
        confirmed_tokens = in_cache
        cached_tokens = expected_tokens if expected_tokens > in_cache else in_cache
        wait_s, step_s = cost.wait_s(load, prompt_tokens), cost.step_under_way_s(load)
        trial_wait_s = load.grammar_wait_s if needs_trial else 0.0
        adapter_load_s = adapter_wait_s = 0.0
        if adapter is not None and adapter not in load.adapters.resident:
            adapter_load_s = load_s
            adapter_wait_s = cost.adapter_wait_s(load, adapter)
        begins_s = wait_s + step_s + trial_wait_s + adapter_load_s + adapter_wait_s
        host_tokens = disk_tokens = peer_tokens = prefill_tokens = 0
        host_load_s = disk_load_s = peer_load_s = prefill_load_s = tier_wait_s = 0.0
        ready_s = late_s = 0.0
        ways: list[cost.PrefixWay] = []
        peer_id = peer = ""
        if token_s is not None:
            near = in_host if in_host > cached_tokens else cached_tokens
            host_tokens = near - cached_tokens
            disk_tokens = on_disk - near if on_disk > near else 0
            at_peer, source = _source_for(load, sources)
            if source is not None and at_peer > near:
                peer_tokens, peer_id, peer = at_peer - near, source.replica_id, source.peer
            if elsewhere is not None and load.peer and elsewhere.tokens > near:
                prefill_tokens = elsewhere.tokens - near
            if host_tokens or disk_tokens or peer_tokens or prefill_tokens:
                tokens = TierTokens(host_tokens, disk_tokens, peer_tokens, prefill_tokens)
                ways = cost.tier_ways(load, begins_s, tokens, token_s, elsewhere)
                (_, loaded, _, host_load_s, disk_load_s, peer_load_s, prefill_load_s) = ways[0][:7]
                tier_wait_s, ready_s = ways[0].wait_s, ways[0].ready_s
            announced = min(expected_tokens, max(in_host, on_disk, at_peer)) - in_cache
            if announced > 0 and not (ways and ways[0].loaded):
                # another request loads them: it took that way because computing takes longer
                is_far = in_cache + announced > in_host
                tier_wait_s = cost.tier_wait_s(
                    load,
                    token_s,
                    reads_disk=is_far and on_disk > in_host,
                    pulls=is_far and at_peer > in_host,
                )
                tier_wait_s = min(tier_wait_s, announced / load.pace.prefill_rate)
                late_s = max(0.0, tier_wait_s - begins_s)
            elif ways and ways[0].loaded:
                late_s = max(0.0, ways[0].load_s - begins_s)
                cached_tokens += loaded
                # the index does not have what is prefilled elsewhere
                confirmed_tokens = cached_tokens - (prefill_tokens if prefill_load_s else 0)
        raw_ttft_s = cost.after_wait(load, begins_s + late_s, prompt_tokens, cached_tokens)
        score = cost.score(load, wait_s, prompt_tokens, cached_tokens, popular_tokens, price)
        # a load delays others as prefill does
        score += (1.0 + cost.OTHERS) * adapter_load_s + adapter_wait_s
        # later requests use what is pulled, as what is computed: each pays its share
        score += late_s * price if peer_load_s else late_s
        crowding_s = 0.0
        if at_work and not (load.queue.waiting or load.queue.running) and load.node_ip in at_work:
            own_tokens = prompt_tokens - cached_tokens
            crowding_s = cost.crowding_s(load, at_work[load.node_ip], own_tokens)
        # positional arguments: named ones would take five times as long, for each candidate
        candidate = Candidate(
            replica_id,
            load.url,
            load.slot,
            load.incarnation,
            cached_tokens,
            confirmed_tokens,
            correction.apply(raw_ttft_s, working, prompt_tokens),
            raw_ttft_s,
            wait_s,
            score + crowding_s + trial_wait_s,
            load.queue.waiting,
            load.queue.running,
            load.queue.prefill_tokens,
            load.pace.inter_token_latency,
            load.cache.use,
            placements.get(load.slot, 0.0),
            load.cache.synced,
            working,
            step_s,
            crowding_s,
            trial_wait_s,
            adapter_load_s,
            adapter_wait_s,
            host_tokens,
            host_load_s,
            disk_tokens,
            disk_load_s,
            tier_wait_s,
            {
                way.name: correction.apply(
                    raw_ttft_s + way.ends_s - ways[0].ends_s, working, prompt_tokens
                )
                for way in ways
            },
            peer_tokens,
            peer_load_s,
            peer_id,
            peer,
            prefill_tokens,
            ready_s,
            prefill_load_s,
            elsewhere.replica_id if elsewhere and prefill_tokens else "",
            elsewhere.address if elsewhere and prefill_tokens else "",
        )
        candidates.append(candidate)
    return candidates


def _cached_tokens(
    prompt_tokens: int, loads: Mapping[str, ReplicaLoad], depths: Mapping[int, int]
) -> list[int]:
    """Return the tokens of the prompt that come from each replica's cache."""
    if not depths:
        return [0] * len(loads)
    cached = []
    segment_tokens, most = 0, 0
    for load in loads.values():
        # normally all replicas of a pool have the same length
        if load.cache.segment_tokens != segment_tokens:
            segment_tokens = load.cache.segment_tokens
            most = reusable_tokens(prompt_tokens, segment_tokens)
        tokens = depths.get(load.slot, 0) * segment_tokens
        cached.append(tokens if tokens < most else most)
    return cached


def _sources(
    prompt_tokens: int, loads: Mapping[str, ReplicaLoad], hosted: Sequence[int]
) -> list[tuple[int, ReplicaLoad]]:
    """Return the two replicas to pull from, with their tokens of the prompt: most tokens first, and
    then the shortest wait. The first one can pull only from the second."""
    serving = [
        (tokens, load)
        for tokens, load in zip(hosted, loads.values(), strict=True)
        if tokens and load.peer and not load.is_avoided
    ]
    serving.sort(key=lambda of: (-of[0], cost.wait_s(of[1], prompt_tokens)))
    return serving[:2]


def _source_for(
    load: ReplicaLoad, sources: Sequence[tuple[int, ReplicaLoad]]
) -> tuple[int, ReplicaLoad | None]:
    """Return the replica that this one can pull from, with its tokens of the prompt."""
    if load.peer:
        for tokens, source in sources:
            if source is not load:
                return tokens, source
    return 0, None


def _shadowed(followed: Candidate, shadow: Policy, chosen: Candidate) -> ShadowDecision:
    return ShadowDecision(
        policy=shadow.name,
        replica_id=chosen.replica_id,
        cached_tokens=chosen.cached_tokens,
        predicted_ttft_s=chosen.predicted_ttft_s,
        regret_s=followed.predicted_ttft_s - chosen.predicted_ttft_s,
    )
