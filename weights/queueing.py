"""How long a prompt waits until a replica computes it, in units of what computing one takes.

Prompts arrive independently, take equally long, and go to the replica that begins them first, as
routing has it: an M/D/c queue. It waits with the probability of Erlang (1917), and then an
exponential time with the mean of heavy traffic (Koellerstroem, "Heavy traffic theory for queues
with several servers", 1974). With one replica the mean is exact (Kleinrock, "Queueing Systems",
1975), and the 99th percentile longer than the exact one by up to 35 %.
"""

from __future__ import annotations

from math import log

# With more replicas hardly any prompt waits.
_MOST_REPLICAS = 256


def waits(replicas: int, share: float) -> float:
    """The probability that a prompt waits. `share`: of their time that replicas compute prompts, 0
    to below 1."""
    blocked = 1.0
    for count in range(1, min(replicas, _MOST_REPLICAS) + 1):
        offered = min(replicas, _MOST_REPLICAS) * share
        blocked = offered * blocked / (count + offered * blocked)
    return blocked / (1 - share * (1 - blocked))


def mean_wait(replicas: int, share: float) -> float:
    """Of all prompts, those that do not wait included."""
    return waits(replicas, share) * _when_waiting(replicas, share)


def wait_percentile(replicas: int, share: float, above: float = 0.01) -> float:
    """What the share `above` of prompts exceeds; 0 where fewer wait at all."""
    probability = waits(replicas, share)
    if probability <= above:
        return 0.0
    return log(probability / above) * _when_waiting(replicas, share)


def _when_waiting(replicas: int, share: float) -> float:
    return 1 / (2 * min(replicas, _MOST_REPLICAS) * (1 - share))
