"""Predicted time to first token (TTFT), in seconds: the one currency of every decision.

    TTFT = wait + step under way + (prompt - cached) / prefill rate
    wait = max(queued prefill / prefill rate, KV pressure, sequence pressure)

`predict_ttft` is physics: what the replica has told, and no constant of ours. `TtftCorrection`
learns what the physics leaves out (HTTP, tokenizing, a rate that is off) as one affine map
for the whole pool, and how engines of one node slow each other down (`router.sharing`). It corrects
what is promised and never changes who is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from router.load import ReplicaLoad
from router.sharing import NodeSharing


def wait_s(load: ReplicaLoad, prompt_tokens: int) -> float:
    """Seconds until this replica would begin with a prompt placed there now; 0: nobody waits.

    The prompts ahead of it are prefilled at the replica's learned rate while those that run make
    room for them: the slower of the two is what it waits for, not their sum.
    """
    wait = load.queued_prefill_tokens / load.prefill_rate
    # each candidate asks: what cannot be pressed is not asked about, and `max` would take a while
    if load.running and (pressure := kv_pressure(load, prompt_tokens)) > wait:
        wait = pressure
    if (pressure := sequence_pressure(load)) > wait:
        wait = pressure
    return wait


def sequence_pressure(load: ReplicaLoad) -> float:
    """Seconds until those that run and those ahead have left a sequence free.

    By Little's law a full engine ends `max_sequences` of them in `decode_s`. 0 while there is a
    free one.
    """
    if load.max_sequences == 0:
        return 0.0
    ahead = load.waiting + load.running + 1 - load.max_sequences
    return ahead * load.decode_s / load.max_sequences if ahead > 0 else 0.0


def kv_pressure(load: ReplicaLoad, prompt_tokens: int) -> float:
    """Seconds until running requests have made room for the backlog and this prompt.

    By Little's law a full KV cache gives back all its tokens in `decode_s`: a request that ends
    leaves its prompt's as well as its answer's. 0 while the prompts fit, when the capacity is
    unknown, and when nothing runs.
    """
    if load.kv_capacity_tokens == 0 or load.running == 0:
        return 0.0
    free = (1.0 - load.kv_use) * load.kv_capacity_tokens
    missing = load.queued_prefill_tokens + prompt_tokens - free
    return missing * load.decode_s / load.kv_capacity_tokens if missing > 0.0 else 0.0


def predict_ttft(load: ReplicaLoad, prompt_tokens: int, cached_tokens: int = 0) -> float:
    """Seconds until a prompt placed on this replica now would get its first token."""
    begins_s = wait_s(load, prompt_tokens) + step_under_way_s(load)
    return after_wait(load, begins_s, prompt_tokens, cached_tokens)


def after_wait(load: ReplicaLoad, begins_s: float, prompt_tokens: int, cached_tokens: int) -> float:
    """Seconds to the first token on a replica that begins with the prompt in `begins_s`: after its
    wait and the engine step that is under way. What is not cached of the prompt is prefilled."""
    own = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
    return begins_s + own / load.prefill_rate


def step_under_way_s(load: ReplicaLoad) -> float:
    """Seconds until the step ends that the engine is in: half of what one takes that decodes so
    many sequences. What it prefills is in the queue.

    Where that is not known, the time from token to token, in which steps that prefill count, too.
    """
    if load.step_s + load.sequence_s <= 0.0:
        return load.inter_token_latency
    if not (load.waiting or load.running):
        return 0.0
    return (load.step_s + load.running * load.sequence_s) / 2.0


# A second of prefill here delays those who come here next: counted this often beside the request
# itself. In a queue at utilisation u it is u / (1 - u) times; 3 is a pool that is 3/4 busy. It does
# not grow with a backlog: 15 crowds few replicas, and first tokens came later under saturation.
OTHERS = 3.0


# The least that a token of a prefix costs which one replica can serve: the request waits for it.
# With 0.05 a fleet of two computes shared system prompts on both, with 0.2 agents crowd.
OWN = 0.1


def price(popularity: float, traffic_share: float, replicas: int) -> float:
    """What a token of a popular prefix costs where it is not cached: 1, or less.

    `popularity` recent requests would have used it there, so each pays its share of computing
    it once. A prefix that takes more than one replica's fair part of the traffic is paid for
    sooner, up to the square: one replica cannot serve it without being above the mean. The less of
    two replicas' parts it takes, the more of OWN is paid all the same: those that have it can serve
    it, and more copies would only push others out of the caches.
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
    """What placing a prompt here costs all together, in seconds: what `prefix` ranks by.

    Its wait, plus the request's own prefill for itself and, OTHERS times, for those it delays.
    Of what is not cached here, the leading `popular_tokens` cost their `price`, the rest 1.
    """
    charged: float = prompt_tokens - cached_tokens if prompt_tokens > cached_tokens else 0
    if popular_tokens > cached_tokens:
        popular = popular_tokens - cached_tokens
        charged -= (1.0 - price) * (popular if popular < charged else charged)
    return wait_s + load.inter_token_latency + (1.0 + OTHERS) * charged / load.prefill_rate


def crowding_s(load: ReplicaLoad, at_work: Sequence[ReplicaLoad], own_tokens: int) -> float:
    """Seconds by which first tokens come later, the request's own and those due on the engines
    `at_work` on its node, because an idle replica begins to compute beside them.

    0 while the node has cores for one engine more. Then n engines share with it what they had, and
    what overlaps takes (n + 1) / n times as long (processor sharing). Behind another request it
    would wait as long, and delay nobody who came before.
    """
    if len(at_work) < load.engines_at_once:
        return 0.0
    own_s = own_tokens / load.prefill_rate
    overlaps = sum(min(own_s, of.queued_prefill_tokens / of.prefill_rate) for of in at_work)
    return (own_s + overlaps) / len(at_work)


# How many observations are remembered: each one's weight halves in about 45.
MEMORY = 64
MIN_SLOPE, MAX_SLOPE = 0.1, 10.0
# An observation counts as at most this many typical errors away from what was expected, and the
# typical error as at least FLOOR_SHARE of it, so that a single outlier moves little and a lasting
# change is followed, ever faster.
OUTLIER_ERRORS = 4.0
FLOOR_SHARE, FLOOR_S = 0.05, 0.001
# How far off predictions are held to be before any was judged, as if that many had been: a new
# fleet's first requests say little of what it does when all its engines work.
UNJUDGED_ERROR, UNJUDGED = 0.2, 16
# Pulls the slope to 1, and to 0 what a token of a prompt takes, where the predictions and prompts
# are all about the same and cannot tell them.
RIDGE = 1e-3
MAX_RELATIVE_ERROR = 10.0
MAX_TTFT_S = 86400.0


class TtftCorrection:
    """Learns `observed = (slope * predicted + token_s * prompt + offset) * sharing` online: least
    squares that forget.

    Slope within [0.1, 10], the others at least 0; `token_s` is what a token of the prompt takes
    that is in no queue, cached or not (reading it, looking it up); `sharing` is a factor by how
    many engines of the node work at once. An error counts by its share of what came, as it is told:
    `error` is the mean of |corrected - observed| / observed over the last observations, each
    predicted before it was learned from; `bias` is the same with its sign: above 0, first tokens
    come sooner than promised. `expected_error` is what to expect of the next one: it begins at
    UNJUDGED_ERROR.
    """

    def __init__(self, slope: float = 1.0, offset: float = 0.0, token_s: float = 0.0) -> None:
        self.error: float | None = None
        self.bias: float | None = None
        self.expected_error = UNJUDGED_ERROR
        self.sharing = NodeSharing()
        self._seen = 0
        self._spread = 0.0
        # of 1, of what was predicted and of the prompt's tokens; and the weighted means of their
        # products, with each other and with what was observed
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
        """Seconds, from what `predict_ttft` says, where so many engines of the node work (see
        `NodeSharing`)."""
        offset, slope, token_s = self._factors  # not by `_line`: each candidate asks
        return (slope * ttft + token_s * prompt_tokens + offset) * self.sharing.factor(working)

    def observe(
        self, predicted: float, observed: float, working: int = 0, prompt_tokens: int = 0
    ) -> None:
        """Learn from one request: both in seconds, `predicted` as `predict_ttft` said it.

        What is no time to a first token (negative, not a number, over a day) is ignored.
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
        """Give one factor the value that fits best with the others as they are: such steps get to
        where all fit best, within their bounds (coordinate descent)."""
        product = self._products[i]
        if not (own := product[i]):
            return
        others = sum(a * b for a, b in zip(product, self._factors, strict=True))
        others -= own * self._factors[i]
        best = (self._with_observed[i] - others + ridge * own * prior) / (own * (1.0 + ridge))
        self._factors[i] = max(least, min(most, best))


def _moved(mean: float, value: float, share: float) -> float:
    return mean + share * (value - mean)
