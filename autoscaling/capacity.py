"""What so many replicas can promise for a workload, and how few of them hold an SLO.

A replica's time goes into prompts, into the tokens of its sequences and into the steps around
them: prompt tokens / prefill_rate + output tokens * sequence_s + steps * step_s = 1 a second. What
the first two leave says how often a step can run, so how long a token takes (TPOT), so how many
sequences are in it at a time, and whether they have room. Prompts wait first come, first served,
for the least busy replica. Nothing here raises.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from autoscaling.slo import Slo

# The share of requests that may miss the SLO.
MISSES = 0.01
# Standard deviations above the mean that a Poisson number exceeds in so many cases.
MISSES_SIGMA = 2.33
# Where a prompt alone takes most of the SLO no number of replicas helps it; the others may still
# wait for this share of it.
WAIT_SHARE = 0.5


@dataclass(frozen=True)
class EngineRates:
    """What one replica can do; None is what nobody has learned yet.

    `prefill_rate` is prompt tokens a second, measured over whole steps; a step in which only n
    sequences are decoded takes `step_s + n * sequence_s` seconds.
    """

    prefill_rate: float | None = None
    step_s: float | None = None
    sequence_s: float | None = None
    max_sequences: float | None = None
    kv_capacity_tokens: float | None = None


@dataclass(frozen=True)
class Workload:
    """What comes for the whole pool: requests a second, and tokens of the mean request.

    `burst_tokens` is the variance of the uncached tokens that come in a second over their mean:
    with Poisson arrivals of fixed sizes just that size, with exponential ones twice the mean.
    """

    requests_per_s: float
    uncached_tokens: float
    prompt_tokens: float
    output_tokens: float
    burst_tokens: float


@dataclass(frozen=True)
class ReplicaShare:
    """One replica's share of a workload.

    `wait_s` is what all but MISSES of the requests wait at most before their own prefill, which
    takes `prefill_s` when its size is what a token of prompt finds itself in; infinite where the
    queue has no end. `occupancy` is the share of its sequences and KV cache in use at peaks: above
    1 it is full.
    """

    busy: float
    wait_s: float
    prefill_s: float
    tpot_s: float
    occupancy: float

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.prefill_s


FULL = ReplicaShare(math.inf, math.inf, math.inf, math.inf, math.inf)


def sequences_per_replica(engine: EngineRates, work: Workload) -> float:
    """How many requests a replica has room for at a time; infinite if nothing limits them."""
    capacity = engine.max_sequences or math.inf
    tokens = work.prompt_tokens + work.output_tokens
    if engine.kv_capacity_tokens and tokens > 0.0:
        capacity = min(capacity, engine.kv_capacity_tokens / tokens)
    return max(1.0, capacity)


def share(engine: EngineRates, work: Workload, replicas: int) -> ReplicaShare:
    """What each of so many replicas has to bear; `engine.prefill_rate` is known."""
    speed = engine.prefill_rate or math.inf
    per_s = work.requests_per_s / replicas
    outputs = per_s * work.output_tokens
    busy = per_s * work.uncached_tokens / speed
    spare = 1.0 - busy - outputs * (engine.sequence_s or 0.0)
    if spare <= 0.0:
        return FULL
    tpot = (engine.step_s or 0.0) / spare
    # All replicas' sequences together vary as a Poisson number does.
    sequences = replicas * (outputs * tpot + busy)
    capacity = replicas * sequences_per_replica(engine, work)
    taken = (sequences + MISSES_SIGMA * math.sqrt(sequences)) / capacity
    wait = quantile_wait(busy, work.burst_tokens / speed, replicas)
    prefill = max(work.burst_tokens, work.uncached_tokens) / speed + tpot
    return ReplicaShare(busy, wait, prefill, tpot, taken)


def quantile_wait(busy: float, burst_s: float, replicas: int) -> float:
    """Seconds that all but MISSES wait for one of the replicas, each `busy` of the time.

    The wait of an M/G/c queue: whether at all after Sakasegawa, and then exponential with the
    mean that Pollaczek and Khinchine's formula gives; `burst_s` is E[S^2] / E[S].
    """
    if busy <= 0.0:
        return 0.0
    waits = busy ** (math.sqrt(2.0 * (replicas + 1)) - 1.0)
    if waits <= MISSES:
        return 0.0
    return burst_s / 2.0 / (replicas * (1.0 - busy)) * math.log(waits / MISSES)


def holds(load: ReplicaShare, slo: Slo) -> bool:
    """Whether all but MISSES get their first token in time, and tokens come as promised."""
    if load.occupancy > 1.0 or (slo.tpot_s is not None and load.tpot_s > slo.tpot_s):
        return False
    return load.wait_s <= max(slo.ttft_s - load.prefill_s, WAIT_SHARE * slo.ttft_s)


def needed(engine: EngineRates, work: Workload, slo: Slo, most: int) -> int:
    """The fewest replicas that hold the SLO; `most` if it takes more, 0 for no work.

    `engine.prefill_rate` is known.
    """
    if work.requests_per_s <= 0.0:
        return 0
    counts = range(1, max(1, most))
    return 1 + bisect_left(counts, True, key=lambda count: holds(share(engine, work, count), slo))
