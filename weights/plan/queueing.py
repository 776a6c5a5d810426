"""The wait of a prompt until a replica computes it, in units of the time to compute one.

Prompts arrive independently, take equally long, and go to the replica that can start first, as in
routing: an M/D/c queue. A prompt waits with the probability of Erlang (1917). The wait is
exponential, with the mean of heavy traffic (Koellerstroem, "Heavy traffic theory for queues with
several servers", 1974). With one replica the mean is exact (Kleinrock, "Queueing Systems", 1975),
and the 99th percentile longer than the exact one by up to 35%.
"""

from __future__ import annotations

from math import log

# With more replicas, prompts hardly ever wait.
_MOST_REPLICAS = 256


def waits(replicas: int, share: float) -> float:
    """Return the probability that a prompt waits. `share`: the share of time in which replicas
    compute prompts, 0 to below 1."""
    blocked = 1.0
    for count in range(1, min(replicas, _MOST_REPLICAS) + 1):
        offered = min(replicas, _MOST_REPLICAS) * share
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - share * (1 - blocked))


def mean_wait(replicas: int, share: float) -> float:
    """Return the mean wait of all prompts, including those that do not wait."""
    return waits(replicas, share) * _when_waiting(replicas, share)


def wait_percentile(replicas: int, share: float, above: float = 0.01) -> float:
    """Return the wait that the share `above` of prompts exceeds; 0 if fewer wait at all."""
    probability = waits(replicas, share)
    if probability <= above:
        return 0.0
    return log(probability / above) * _when_waiting(replicas, share)


def _when_waiting(replicas: int, share: float) -> float:
    return 1 / (2 * min(replicas, _MOST_REPLICAS) * (1 - share))
