"""The number of replicas that a pool needs, by every cause.

Each term is an independent number of replicas, including starting ones. The result is the largest,
so that none is added to another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from autoscaling.scaling.capacity import (
    MISSES,
    MISSES_SIGMA,
    EngineRates,
    Workload,
    needed,
    sequences_per_replica,
)
from autoscaling.scaling.forecast import Forecast, History
from autoscaling.slo import Slo

# A replica is added for the expected rate. One is removed only if it would not be needed at a rate
# this many standard deviations higher. So a rate between two numbers of replicas changes neither.
DOWN_SIGMA = 1.0
# Refused and computed work is counted over this time.
RECENT_S = 60.0


@dataclass(frozen=True)
class PoolDemand:
    """The known state of a pool, validated.

    Times are in seconds, `up_in_s` until starting replicas are up. `request` is the workload of one
    request per second.
    """

    line: Forecast
    request: Workload
    engine: EngineRates
    slo: Slo
    most: int
    startup_s: float
    running: int = 0
    starting: int = 0
    up_in_s: float = 0.0
    in_flight: int = 0
    queued_tokens: float = 0.0

    @property
    def speed(self) -> float:
        """Return the prompt tokens per second of a replica; infinite if unknown."""
        return self.engine.prefill_rate or math.inf

    @property
    def backlog_s(self) -> float:
        """Return the seconds of queued work of each running replica."""
        return self.queued_tokens / self.speed / max(1, self.running)

    def expected_rate(self, ahead_s: float, sigmas: float = 0.0) -> float:
        """Return requests per second, now or then, whichever is more; 0 without recent arrivals."""
        if self.line.rate <= 0.0:
            return 0.0
        return max(self.line.at(0.0, sigmas), self.line.at(ahead_s, sigmas))


def work_of_a_request(history: History) -> Workload:
    uncached = history.per_request("uncached_tokens") or 0.0
    return Workload(
        requests_per_s=1.0,
        uncached_tokens=uncached,
        prompt_tokens=history.per_request("prompt_tokens") or uncached,
        output_tokens=history.per_request("output_tokens") or 0.0,
        burst_tokens=uncached * history.token_dispersion,
    )


def for_forecast(pool: PoolDemand, ahead_s: float, sigmas: float = 0.0) -> int:
    """Return the replicas that meet the SLO under the expected load; 0 if the engine's rates are
    unknown."""
    if pool.engine.prefill_rate is None:
        return 0
    work = replace(pool.request, requests_per_s=pool.expected_rate(ahead_s, sigmas))
    return needed(pool.engine, work, pool.slo, pool.most)


def for_backlog(pool: PoolDemand) -> int:
    """Return the replicas that finish the queue, in addition to arrivals, within the start time of
    a replica.

    A new replica would not see requests that are finished before.
    """
    if pool.queued_tokens <= 0.0 or math.isinf(pool.speed):
        return 0
    coming = pool.expected_rate(0.0) * pool.request.uncached_tokens
    drain_s = max(pool.startup_s, pool.slo.ttft_s)

    def left(tokens: float, replicas: int, seconds: float) -> float:
        speed = replicas * pool.speed
        # Admission lets at most one SLO of work wait.
        return max(0.0, tokens + min((coming - speed) * seconds, speed * pool.slo.ttft_s))

    def enough(tokens: float) -> int:
        return math.ceil(min(pool.most, (tokens / drain_s + coming) / pool.speed))

    asked_for = pool.running + pool.starting
    tokens = left(pool.queued_tokens, pool.running, pool.up_in_s)
    if enough(tokens) <= asked_for:
        return enough(tokens)
    later = max(0.0, pool.startup_s - pool.up_in_s)
    return max(asked_for, enough(left(tokens, asked_for, later)))


def for_in_flight(pool: PoolDemand) -> int:
    """Return the replicas that have room for the requests in the replicas now."""
    capacity = sequences_per_replica(pool.engine, pool.request)
    return math.ceil(min(pool.most, pool.in_flight / capacity))


def misses_too_many(history: History) -> bool:
    """Return whether more requests were rejected lately than the SLO allows, and than chance
    explains."""
    allowed = MISSES * history.growth("arrived", RECENT_S)
    rejected = history.growth("rejected", RECENT_S)
    return rejected > 1.0 + allowed + MISSES_SIGMA * math.sqrt(allowed)


def seen_speed(history: History, queued_tokens: float) -> float:
    """Return the prompt tokens per second that each replica has computed lately, a lower bound of
    its rate.

    Rejected prompts are likely to be long: they count as twice the mean.
    """
    arrived, running = history.growth("arrived", RECENT_S), history.growth("replica_s", RECENT_S)
    if arrived <= 0.0 or running <= 0.0:
        return 0.0
    served = 1.0 - 2.0 * history.growth("rejected", RECENT_S) / arrived
    return max(0.0, history.growth("uncached_tokens", RECENT_S) * served - queued_tokens) / running
