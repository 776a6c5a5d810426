"""How long prompts wait: against the exact M/D/1 queue, and against queues that are played."""

from __future__ import annotations

import heapq
import random
from math import exp, factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weights.plan.queueing import mean_wait, wait_percentile, waits

shares = st.floats(0.01, 0.97)
counts = st.integers(1, 500)
PLAYED = 8000


def share_that_waits_longer(share: float, wait: float) -> float:
    """Of M/D/1, exactly (Erlang, 1909)."""
    return 1 - (1 - share) * sum(
        exp(share * (wait - k)) * (share * (k - wait)) ** k / factorial(k)
        for k in range(int(wait) + 1)
    )


def played(replicas: int, share: float) -> list[float]:
    """The waits of prompts that each take 1 and go to the replica that is free first, sorted."""
    dice, now, free = random.Random(1), 0.0, [0.0] * replicas
    found: list[float] = []
    for _ in range(PLAYED):
        now += dice.expovariate(replicas * share)
        begins = max(now, heapq.heappop(free))
        found.append(begins - now)
        heapq.heappush(free, begins + 1)
    return sorted(found)


@given(shares)
def test_the_mean_wait_of_one_replica_follows_pollaczek_and_khinchin(share: float) -> None:
    assert waits(1, share) == pytest.approx(share)
    assert mean_wait(1, share) == pytest.approx(share / (2 * (1 - share)))


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.5, 0.7, 0.8])
def test_the_p99_wait_of_one_replica_is_not_below_the_exact_one(share: float) -> None:
    found = wait_percentile(1, share)
    assert share_that_waits_longer(share, found) <= 0.01
    assert share_that_waits_longer(share, found / 1.35) > 0.01


@given(counts, shares)
def test_one_more_replica_never_lengthens_the_wait(replicas: int, share: float) -> None:
    for wait in (waits, mean_wait, wait_percentile):
        assert wait(replicas + 1, share) <= wait(replicas, share) * (1 + 1e-9)


@given(counts, shares, shares)
def test_more_prompts_never_shorten_the_wait(replicas: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    for wait in (waits, mean_wait, wait_percentile):
        assert wait(replicas, low) <= wait(replicas, high) * (1 + 1e-9)


@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.8])
def test_simulated_queues_confirm_the_predicted_wait(replicas: int, share: float) -> None:
    """Within a sixth of what a prompt takes, and a quarter of the wait."""
    found = played(replicas, share)
    late = found[PLAYED * 99 // 100]
    assert wait_percentile(replicas, share) == pytest.approx(late, rel=0.25, abs=1 / 6)
    assert mean_wait(replicas, share) == pytest.approx(sum(found) / PLAYED, rel=0.25, abs=1 / 6)
