"""Predicted time to first token (TTFT), in seconds, the basis of every decision.

    TTFT = wait + step under way + (prompt - cached) / prefill rate
    wait = max(queued prefill / prefill rate, KV pressure, sequence pressure)

`predict_ttft` is a model of the replica's reports, without tuned constants. `TtftCorrection` learns
what the model omits (HTTP, tokenizing, a wrong rate) as one affine map for the whole pool. It also
learns how engines of one node slow each other down (`router.choice.sharing`). It corrects
predictions and never changes the choice.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from router.board.load import ReplicaLoad
from router.choice.sharing import NodeSharing


def wait_s(load: ReplicaLoad, prompt_tokens: int) -> float:
    """Return the seconds until this replica would start a prompt placed there now; 0 without a
    queue.

    The prompts before it are prefilled at the replica's learned rate while running requests make
    room for them. The wait is the slower of the two, not their sum.
    """
    wait = load.queue.prefill_tokens / load.pace.prefill_rate
    # this runs for each candidate: no pressure is computed where there can be none, and `max` would
    # be slower
    if load.queue.running and (pressure := kv_pressure(load, prompt_tokens)) > wait:
        wait = pressure
    if (pressure := sequence_pressure(load)) > wait:
        wait = pressure
    return wait


def sequence_pressure(load: ReplicaLoad) -> float:
    """Return the seconds until running and queued sequences have left a sequence free.

    By Little's law a full engine ends `max_sequences` of them in `decode_s`. 0 while one is free.
    """
    if load.max_sequences == 0:
        return 0.0
    ahead = load.queue.waiting + load.queue.running + 1 - load.max_sequences
    return ahead * load.pace.decode_s / load.max_sequences if ahead > 0 else 0.0


def queue_s(loads: Collection[ReplicaLoad], sequences: int, tokens: int) -> float:
    """Return the seconds until full replicas have started a queue of `sequences` sequences with
    `tokens` uncached prompt tokens.

    They prefill the queue at their learned rates while running sequences make room for it. The wait
    is the slower of the two, not their sum. By Little's law a replica ends `running` sequences in
    `decode_s`. While that is unknown, only the prompts count.
    """
    wait = tokens / sum(load.pace.prefill_rate for load in loads)
    ended_per_s = sum(
        load.queue.running / load.pace.decode_s for load in loads if load.pace.decode_s > 0.0
    )
    return max(wait, sequences / ended_per_s) if ended_per_s > 0.0 else wait


def kv_pressure(load: ReplicaLoad, prompt_tokens: int) -> float:
    """Return the seconds until running requests have freed cache for the queue and this prompt.

    By Little's law a full KV cache frees all its tokens in `decode_s`: a request that ends frees
    its prompt's as well as its answer's. 0 while the prompts fit, if the capacity is unknown, and
    if nothing runs.
    """
    if load.cache.capacity_tokens == 0 or load.queue.running == 0:
        return 0.0
    free = (1.0 - load.cache.use) * load.cache.capacity_tokens
    missing = load.queue.prefill_tokens + prompt_tokens - free
    return missing * load.pace.decode_s / load.cache.capacity_tokens if missing > 0.0 else 0.0


def predict_ttft(load: ReplicaLoad, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Return the seconds until a prompt placed on this replica now gets its first token."""
    begins_s = wait_s(load, prompt_tokens) + step_under_way_s(load)
    return after_wait(load, begins_s, prompt_tokens, cached_tokens)


def after_wait(load: ReplicaLoad, begins_s: float, prompt_tokens: int, cached_tokens: int) -> float:
    """Return the seconds to the first token on a replica that starts the prompt in `begins_s`,
    after its wait and the current engine step.

    The uncached part of the prompt is prefilled.
    """
    own = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
    return begins_s + own / load.pace.prefill_rate


def step_under_way_s(load: ReplicaLoad) -> float:
    """Return the seconds until the engine's current step ends: half of a decode step with its
    number of sequences.

    Its prefills are part of the queue. If the step times are unknown, it uses the time from token
    to token, which includes steps with prefills.
    """
    if load.pace.step_s + load.pace.sequence_s <= 0.0:
        return load.pace.inter_token_latency
    if not (load.queue.waiting or load.queue.running):
        return 0.0
    return (load.pace.step_s + load.queue.running * load.pace.sequence_s) / 2.0


# A second of prefill here delays the next requests here, so it counts this often in addition to the
# request itself. In a queue at utilization u it is u / (1 - u) times; 3 is a pool that is 3/4 busy.
# It does not grow with a backlog: 15 crowds few replicas, and first tokens arrived later under
# saturation.
OTHERS = 3.0


# The minimum cost of a prefix token that only one replica can serve: the request waits for it. With
# 0.05 a fleet of two computes shared system prompts on both, with 0.2 agents crowd.
OWN = 0.1


def price(popularity: float, traffic_share: float, replicas: int) -> float:
    """Return the cost of an uncached token of a popular prefix: 1, or less.

    `popularity` recent requests would have used it there, so each pays its share of computing it
    once. A prefix with more than one replica's fair part of the traffic is paid for sooner, up to
    the square. One replica cannot serve it without exceeding the mean. The less of two replicas'
    parts it takes, the more of OWN is paid anyway: the replicas that have it can serve it, and more
    copies would only evict others from the caches.
    """
    parts = traffic_share * replicas
    shared = float(max(1.0, popularity) ** -(1.0 + min(1.0, parts)))
    return max(shared, OWN * (1.0 - min(1.0, parts / 2.0)))


def score(
    load: ReplicaLoad,
    wait_s: float,
    prompt_tokens: int,
    cached_tokens: int,
    popular_tokens: int,
    price: float,
) -> float:
    """Return the total cost of placing a prompt here, in seconds: the rank of `prefix`.

    It is the wait, plus the request's own prefill for itself and, OTHERS times, for the requests
    that it delays. Of the uncached tokens, the leading `popular_tokens` cost their `price`, the
    rest 1.
    """
    charged: float = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
    if popular_tokens > cached_tokens:
        popular = popular_tokens - cached_tokens
        charged -= (1.0 - price) * (popular if popular < charged else charged)
    return (
        wait_s + load.pace.inter_token_latency + (1.0 + OTHERS) * charged / load.pace.prefill_rate
    )


# How much faster an engine gets tokens from a tier than it computes them, until some replica has
# measured it. Each tier is tried, and then measured.
UNKNOWN_HOST_LOAD, UNKNOWN_DISK_LOAD, UNKNOWN_PEER_LOAD = 10.0, 3.0, 3.0


class TierLoadS(NamedTuple):
    """Seconds in which a replica gets a token from its host tier, from its disk tier, and from
    another replica: what it reads or pulls is then loaded from the host."""

    host: float
    disk: float
    peer: float


def tier_load_s(loads: Iterable[ReplicaLoad]) -> TierLoadS:
    """Return the means over the pool's replicas, as in `adapter_load_s`."""
    hosts, disks, peers, rates = [], [], [], []
    for load in loads:
        pace = load.pace
        rates.append(pace.prefill_rate)
        if pace.host_load_rate > 0.0:
            hosts.append(1.0 / pace.host_load_rate)
        if pace.disk_load_rate > 0.0:
            disks.append(1.0 / pace.disk_load_rate)
        if pace.peer_load_rate > 0.0:
            peers.append(1.0 / pace.peer_load_rate)
    computing_s = len(rates) / sum(rates) if rates else 0.0
    host = sum(hosts) / len(hosts) if hosts else computing_s / UNKNOWN_HOST_LOAD
    disk = sum(disks) / len(disks) if disks else computing_s / UNKNOWN_DISK_LOAD
    peer = sum(peers) / len(peers) if peers else computing_s / UNKNOWN_PEER_LOAD
    return TierLoadS(host, host + disk, host + peer)


# How a replica gets the tokens of a prompt that are not in its cache.
WayName = Literal["compute", "host", "disk", "peer", "prefill"]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The replica of the prefill pool that would compute a prompt, for another one to pull it.

    `address`: of its engine, for pulls. `tokens`: those that can then be pulled. `ready_s`: the
    predicted seconds until it has them. `always`: the other replica is to compute none of them.
    """

    replica_id: str
    address: str
    tokens: int
    ready_s: float
    always: bool = False


class TierTokens(NamedTuple):
    """The tokens of a prompt that a replica can get after those in its cache: from its host tier,
    and then more from one other source. That is its disk tier, another replica, or a replica of the
    prefill pool, which computes them first."""

    host: int = 0
    disk: int = 0
    peer: int = 0
    prefill: int = 0


class PrefixWay(NamedTuple):
    """A way to get these tokens. `ends_s`: the seconds until the replica has all of them, from now;
    the rest is then computed. `loaded`: those of them that it does not compute.

    The next are the seconds that load the tokens of each source (0: it is not used), and before,
    those of the wait for earlier loads and for the prefill pool's replica.
    """

    ends_s: float
    loaded: int
    name: WayName
    host_s: float = 0.0
    disk_s: float = 0.0
    peer_s: float = 0.0
    prefill_s: float = 0.0
    wait_s: float = 0.0
    ready_s: float = 0.0

    @property
    def load_s(self) -> float:
        """The seconds until its last load has ended."""
        waits_s = self.ready_s + self.wait_s
        return waits_s + self.host_s + self.disk_s + self.peer_s + self.prefill_s


def tier_wait_s(
    load: ReplicaLoad, token_s: TierLoadS, *, reads_disk: bool = False, pulls: bool = False
) -> float:
    """Return the seconds until the loads of requests without a first token have ended on the path
    that a load takes: from the host tier, if it `reads_disk`, also from files, and if it `pulls`,
    also from other replicas.

    Loads share a path, so none of them becomes faster if they start at the same time.
    """
    queue = load.queue
    disk_s = token_s.disk if reads_disk else token_s.host
    peer_s = token_s.peer if pulls else token_s.host
    return (
        queue.host_tokens * token_s.host + queue.disk_tokens * disk_s + queue.peer_tokens * peer_s
    )


def tier_ways(
    load: ReplicaLoad,
    begins_s: float,
    tokens: TierTokens,
    token_s: TierLoadS,
    elsewhere: Elsewhere | None = None,
) -> list[PrefixWay]:
    """Return the ways to get these tokens, the fastest first: to compute all, to load those of the
    host tier, or after these, to get more from one other source. If two take the same time, the one
    that computes more is first.

    The replica would start the prompt in `begins_s`. It loads while it computes the prompts before
    this one, so of the two waits the longer counts. `elsewhere`: the prefill pool's replica that
    computes `tokens.prefill`. If it is to be used `always`, that way is first.
    """
    host, disk, peer, prefill = tokens
    host_s, computing_s = host * token_s.host, 1.0 / load.pace.prefill_rate
    most = host + max(disk, peer, prefill)

    def ends_s(loads_s: float, loaded: int) -> float:
        return max(begins_s, loads_s) + (most - loaded) * computing_s

    ways = [PrefixWay(ends_s(0.0, 0), 0, "compute")]
    if host:
        wait_s = tier_wait_s(load, token_s)
        ends = ends_s(wait_s + host_s, host)
        ways.append(PrefixWay(ends, host, "host", host_s, wait_s=wait_s))
    if disk:
        wait_s, disk_s = tier_wait_s(load, token_s, reads_disk=True), disk * token_s.disk
        ends = ends_s(wait_s + host_s + disk_s, host + disk)
        ways.append(PrefixWay(ends, host + disk, "disk", host_s, disk_s, wait_s=wait_s))
    if peer:
        wait_s, peer_s = tier_wait_s(load, token_s, pulls=True), peer * token_s.peer
        ends = ends_s(wait_s + host_s + peer_s, host + peer)
        ways.append(PrefixWay(ends, host + peer, "peer", host_s, peer_s=peer_s, wait_s=wait_s))
    ways.sort()  # by time, then by the tokens that are loaded
    if prefill and elsewhere is not None:
        wait_s, prefill_s = tier_wait_s(load, token_s, pulls=True), prefill * token_s.peer
        ready_s = elsewhere.ready_s
        ends = ends_s(ready_s + wait_s + host_s + prefill_s, host + prefill)
        way = PrefixWay(
            *(ends, host + prefill, "prefill", host_s),
            prefill_s=prefill_s,
            wait_s=wait_s,
            ready_s=ready_s,
        )
        insort(ways, way)
        if elsewhere.always:
            ways.sort(key=lambda way: way.name != "prefill")
    return ways


# What loading an adapter takes until some replica has measured it: 100 MB from a disk.
UNKNOWN_LOAD_S = 0.2
# It takes no less: it may evict an adapter that others ask for.
LEAST_LOAD_S = 0.02


def adapter_load_s(loads: Iterable[ReplicaLoad]) -> float:
    """Return the seconds in which a replica loads an adapter into memory. Its engine computes no
    other request meanwhile.

    It is the mean over the pool's replicas: each has measured few loads, under other work. The
    difference between two of them is chance, and would send requests past an idle replica.
    """
    measured = [load.adapters.load_s for load in loads if load.adapters.load_s > 0.0]
    return max(LEAST_LOAD_S, sum(measured) / len(measured)) if measured else UNKNOWN_LOAD_S


def adapter_wait_s(load: ReplicaLoad, adapter: str | None) -> float:
    """Return the seconds until the requests of other adapters have left a slot for this one's; 0
    while a slot is free, if the engine has it in memory, and without an adapter.

    By Little's law full slots end all their requests in `decode_s`.
    """
    if (
        adapter is None
        or adapter in load.adapters.resident
        or load.adapters.busy < load.adapters.slots
    ):
        return 0.0
    ahead = load.adapters.busy + 1 - load.adapters.slots
    return ahead * load.pace.decode_s / max(1, load.adapters.slots)


def crowding_s(load: ReplicaLoad, at_work: Sequence[ReplicaLoad], own_tokens: int) -> float:
    """Return the seconds by which first tokens are delayed if an idle replica starts to compute
    next to others.

    They are those of the request and of others on the engines `at_work` on its node. 0 while the
    node has cores for one more engine. Otherwise n engines share their cores with it, and
    overlapping work takes (n + 1) / n times the time (processor sharing). Behind another request it
    would wait as long, and delay no earlier one.
    """
    if len(at_work) < load.engines_at_once:
        return 0.0
    own_s = own_tokens / load.pace.prefill_rate
    overlaps = sum(min(own_s, of.queue.prefill_tokens / of.pace.prefill_rate) for of in at_work)
    return (own_s + overlaps) / len(at_work)


# Number of observations that count: the weight of each halves in about 45.
MEMORY = 64
MIN_SLOPE, MAX_SLOPE = 0.1, 10.0
# An observation counts as at most this many typical errors from the expectation, and the typical
# error as at least FLOOR_SHARE of it. So a single outlier changes little, and a lasting change is
# followed ever faster.
OUTLIER_ERRORS = 4.0
FLOOR_SHARE, FLOOR_S = 0.05, 0.001
# The assumed error of predictions before the first observation, and its weight in observations. A
# new fleet's first requests say little about it when all its engines work.
UNJUDGED_ERROR, UNJUDGED = 0.2, 16
# Pulls the slope to 1, and the time per prompt token to 0. This matters if predictions and prompts
# are all about equal and do not determine them.
RIDGE = 1e-3
MAX_RELATIVE_ERROR = 10.0
MAX_TTFT_S = 86400.0


class TtftCorrection:
    """Learns `observed = (slope * predicted + token_s * prompt + offset) * sharing` online: least
    squares with forgetting.

    Slope within [0.1, 10], the others at least 0. `token_s` is the time per prompt token that is in
    no queue, cached or not (reading it, looking it up). `sharing` is a factor by the number of
    engines of the node that work at once. An error counts relative to the observation: `error` is
    the mean of |corrected - observed| / observed over the last observations, each predicted before
    it was learned from. `bias` is the same with its sign: above 0, first tokens arrive sooner than
    predicted. `expected_error` is the expectation for the next one: it starts at UNJUDGED_ERROR.
    """

    def __init__(self, slope: float = 1.0, offset: float = 0.0, token_s: float = 0.0) -> None:
        self.error: float | None = None
        self.bias: float | None = None
        self.expected_error = UNJUDGED_ERROR
        self.sharing = NodeSharing()
        self._seen = 0
        self._spread = 0.0
        # of 1, the prediction and the prompt's tokens; and the weighted means of their products,
        # with each other and with the observation
        self._factors = [offset, slope, token_s]
        self._products = [[0.0] * 3 for _ in range(3)]
        self._with_observed = [0.0] * 3

    @property
    def slope(self) -> float:
        return self._factors[1]

    @property
    def offset(self) -> float:
        """Seconds."""
        return self._factors[0]

    @property
    def token_s(self) -> float:
        return self._factors[2]

    def apply(self, ttft: float, working: int = 0, prompt_tokens: int = 0) -> float:
        """Return corrected seconds, from the result of `predict_ttft`, with `working` busy engines
        on the node (see `NodeSharing`)."""
        offset, slope, token_s = self._factors  # not by `_line`: this runs for each candidate
        return (slope * ttft + token_s * prompt_tokens + offset) * self.sharing.factor(working)

    def observe(
        self, predicted: float, observed: float, working: int = 0, prompt_tokens: int = 0
    ) -> None:
        """Learn from one request: both in seconds, `predicted` as returned by `predict_ttft`.

        An observation that is not a valid time (negative, not a number, over a day) is ignored.
        """
        if not (0.0 <= predicted <= MAX_TTFT_S and 0.0 < observed <= MAX_TTFT_S):
            return
        factor = self.sharing.factor(working)
        expected = self._line(predicted, prompt_tokens)
        share = 1.0 / min(self._seen + 1, MEMORY)
        self._seen += 1
        self._judge((expected * factor - observed) / observed, share)
        expected = max(expected, FLOOR_S)
        self.sharing.observe(working, observed / (expected * factor))
        observed = self._limited(expected, observed / factor, share)
        self._fit((1.0, predicted, float(prompt_tokens)), observed, share)

    def _line(self, ttft: float, prompt_tokens: int) -> float:
        offset, slope, token_s = self._factors
        return slope * ttft + token_s * prompt_tokens + offset

    def _judge(self, relative: float, share: float) -> None:
        relative = max(-MAX_RELATIVE_ERROR, min(MAX_RELATIVE_ERROR, relative))
        self.error = _moved(self.error or 0.0, abs(relative), share)
        self.bias = _moved(self.bias or 0.0, relative, share)
        share = 1.0 / min(self._seen + UNJUDGED, MEMORY)
        self.expected_error = _moved(self.expected_error, abs(relative), share)

    def _limited(self, expected: float, observed: float, share: float) -> float:
        spread = max(self._spread, FLOOR_SHARE)
        limit = OUTLIER_ERRORS * spread
        surprise = max(-limit, min(limit, math.log(observed / expected)))
        self._spread = _moved(spread, abs(surprise), share)
        return expected * math.exp(surprise)

    def _fit(self, of: tuple[float, float, float], observed: float, share: float) -> None:
        weight = 1.0 / (observed + FLOOR_S) ** 2
        for product, one in zip(self._products, of, strict=True):
            for i, other in enumerate(of):
                product[i] = _moved(product[i], weight * one * other, share)
        for i, one in enumerate(of):
            self._with_observed[i] = _moved(self._with_observed[i], weight * one * observed, share)
        self._improve(0, 0.0, 0.0, 0.0, math.inf)
        self._improve(1, RIDGE, 1.0, MIN_SLOPE, MAX_SLOPE)
        self._improve(2, RIDGE, 0.0, 0.0, math.inf)

    def _improve(self, i: int, ridge: float, prior: float, least: float, most: float) -> None:
        """Set one factor to its best value with the others fixed: such steps converge to the best
        fit within the bounds (coordinate descent)."""
        product = self._products[i]
        if not (own := product[i]):
            return
        others = sum(a * b for a, b in zip(product, self._factors, strict=True))
        others -= own * self._factors[i]
        best = (self._with_observed[i] - others + ridge * own * prior) / (own * (1.0 + ridge))
        self._factors[i] = max(least, min(most, best))


def _moved(mean: float, value: float, share: float) -> float:
    return mean + share * (value - mean)
