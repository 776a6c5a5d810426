"""The performance of a number of replicas under a workload, and the fewest that meet an SLO.

A replica spends its time on prompts, on the tokens of its sequences, and on the steps around them:
prompt tokens / prefill_rate + output tokens * sequence_s + steps * step_s = 1 per second. The rest
after the first two determines how often a step can run. That determines the time per token (TPOT),
the number of sequences in it at a time, and whether they have room. Prompts wait first come, first
served, for the least busy replica. Nothing here raises.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from autoscaling.slo import Slo

# The share of requests that may miss the SLO.
MISSES = 0.01
# A Poisson number exceeds its mean by this many standard deviations in that share of cases.
MISSES_SIGMA = 2.33
# If one prompt takes most of the SLO, no number of replicas helps it. The other prompts may still
# wait for this share of the SLO.
WAIT_SHARE = 0.5


@dataclass(frozen=True)
class EngineRates:
    """The rates of one replica; None is unknown.

    `prefill_rate` is prompt tokens per second, measured over whole steps. A step that only decodes
    n sequences takes `step_s + n * sequence_s` seconds.
    """

    prefill_rate: float | None = None
    step_s: float | None = None
    sequence_s: float | None = None
    max_sequences: float | None = None
    kv_capacity_tokens: float | None = None


@dataclass(frozen=True)
class Workload:
    """The workload of the whole pool: requests per second, and tokens of the mean request.

    `burst_tokens` is the variance of the uncached tokens per second over their mean. It equals the
    size for Poisson arrivals of fixed sizes, and twice the mean for exponential sizes.
    """

    requests_per_s: float
    uncached_tokens: float
    prompt_tokens: float
    output_tokens: float
    burst_tokens: float


@dataclass(frozen=True)
class ReplicaShare:
    """One replica's share of a workload.

    `wait_s`: the longest wait before prefill of all requests except MISSES; infinite if the queue
    grows without end. The prefill then takes `prefill_s`, for the size in which the mean prompt
    token is. `occupancy`: the used share of its sequences and KV cache at peaks; above 1 it is
    full.
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
    """Return how many requests a replica has room for at a time; infinite without limits."""
    capacity = engine.max_sequences or math.inf
    tokens = work.prompt_tokens + work.output_tokens
    if engine.kv_capacity_tokens and tokens > 0.0:
        capacity = min(capacity, engine.kv_capacity_tokens / tokens)
    return max(1.0, capacity)


def share(engine: EngineRates, work: Workload, replicas: int) -> ReplicaShare:
    """Return the share of each of `replicas` replicas; `engine.prefill_rate` must be known."""
    speed = engine.prefill_rate or math.inf
    per_s = work.requests_per_s / replicas
    outputs = per_s * work.output_tokens
    busy = per_s * work.uncached_tokens / speed
    spare = 1.0 - busy - outputs * (engine.sequence_s or 0.0)
    if spare <= 0.0:
        return FULL
    tpot = (engine.step_s or 0.0) / spare
    # The sequences of all replicas together vary like a Poisson number.
    sequences = replicas * (outputs * tpot + busy)
    capacity = replicas * sequences_per_replica(engine, work)
    taken = (sequences + MISSES_SIGMA * math.sqrt(sequences)) / capacity
    wait = quantile_wait(busy, work.burst_tokens / speed, replicas)
    prefill = max(work.burst_tokens, work.uncached_tokens) / speed + tpot
    return ReplicaShare(busy, wait, prefill, tpot, taken)


def quantile_wait(busy: float, burst_s: float, replicas: int) -> float:
    """Return the seconds that all requests except MISSES wait for one of the replicas, each `busy`
    of the time.

    The wait of an M/G/c queue: its probability after Sakasegawa, and then an exponential time with
    the mean of Pollaczek and Khinchine's formula; `burst_s` is E[S^2] / E[S].
    """
    if busy <= 0.0:
        return 0.0
    waits = busy ** (math.sqrt(2.0 * (replicas + 1)) - 1.0)
    if waits <= MISSES:
        return 0.0
    return burst_s / 2.0 / (replicas * (1.0 - busy)) * math.log(waits / MISSES)


def holds(load: ReplicaShare, slo: Slo) -> bool:
    """Return whether all requests except MISSES meet TTFT, and tokens meet TPOT."""
    if load.occupancy > 1.0 or (slo.tpot_s is not None and load.tpot_s > slo.tpot_s):
        return False
    return load.wait_s <= max(slo.ttft_s - load.prefill_s, WAIT_SHARE * slo.ttft_s)


def needed(engine: EngineRates, work: Workload, slo: Slo, most: int) -> int:
    """Return the fewest replicas that meet the SLO; `most` if it takes more, 0 for no work.

    `engine.prefill_rate` must be known.
    """
    if work.requests_per_s <= 0.0:
        return 0
    counts = range(1, max(1, most))
    return 1 + bisect_left(counts, True, key=lambda count: holds(share(engine, work, count), slo))
