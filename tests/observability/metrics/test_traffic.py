"""What a gateway process keeps of the traffic of the last minutes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from observability.metrics.traffic import (
    MOST_POINTS,
    POOL_MINUTES,
    SERIES_OF_TENANTS,
    TENANT_MINUTES,
    MinuteCounts,
    ServedTraffic,
)

# Any; and the hour that it is in has begun some minutes ago.
NOW = 29_400_017


@dataclass
class Clock:
    minute: float = NOW

    def __call__(self) -> float:
        return self.minute * 60


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def traffic(clock: Clock) -> ServedTraffic:
    return ServedTraffic(clock)


def test_a_history_counts_each_request_in_its_minute() -> None:
    counts = MinuteCounts(POOL_MINUTES)
    for minute, requests in ((NOW - 60, 9), (NOW - 59, 1), (NOW - 1, 2), (NOW, 3)):
        counts.add(minute, {"ok": requests})
    history = counts.history(NOW, 60)
    assert (history.step_s, history.points) == (60, 60)
    assert history.begins == (NOW - 59) * 60
    assert history.counts == {"ok": [1, *[0] * 57, 2, 3]}


@pytest.mark.parametrize(("minutes", "step_s"), [(1, 60), (60, 60), (360, 300), (1440, 900)])
def test_a_longer_time_range_has_longer_steps_and_few_points(minutes: int, step_s: int) -> None:
    counts = MinuteCounts(POOL_MINUTES)
    counts.add(NOW, {"ok": 1})
    history = counts.history(NOW, minutes)
    assert history.step_s == step_s and history.points == minutes * 60 // step_s <= MOST_POINTS
    assert history.begins % step_s == 0
    assert history.begins <= NOW * 60 < history.begins + history.points * step_s
    assert history.counts["ok"][-1] == 1


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 5)), min_size=1))
def test_nothing_is_lost_or_counted_twice(added: list[tuple[int, int]]) -> None:
    counts, minute, every = MinuteCounts(TENANT_MINUTES), NOW, []
    for later, amount in added:
        minute += later
        counts.add(minute, {"ok": amount})
        every.append((minute, amount))
    kept = sum(amount for at, amount in every if at > minute - TENANT_MINUTES)
    assert counts.total() == {"ok": sum(amount for _, amount in every)}
    assert counts.recent(minute) == {"ok": kept}
    assert sum(counts.history(minute, TENANT_MINUTES).counts["ok"]) == kept
    assert counts.recent(minute + TENANT_MINUTES) == {}


def test_a_clock_that_goes_back_loses_no_request() -> None:
    counts = MinuteCounts(POOL_MINUTES)
    counts.add(NOW, {"ok": 1})
    counts.add(NOW - 5, {"ok": 1})
    assert counts.total() == {"ok": 2}
    assert counts.history(NOW - 5, 60).counts["ok"][-1] == 2


def test_traffic_is_counted_for_each_tenant_and_for_the_whole_pool(traffic: ServedTraffic) -> None:
    traffic.count("main", "a", {"ok": 1, "output_tokens": 7})
    traffic.count("main", "b", {"failed": 1})
    traffic.count("small", "a", {"ok": 1})
    assert traffic.of("main", None).total() == {"ok": 1, "failed": 1, "output_tokens": 7}
    assert traffic.of("main", "a").total() == {"ok": 1, "output_tokens": 7}
    assert traffic.by_tenant() == {"a": {"ok": 2, "output_tokens": 7}, "b": {"failed": 1}}


def test_traffic_that_was_never_counted_is_empty(traffic: ServedTraffic) -> None:
    traffic.count("main", "a", {"ok": 1})
    for pool, tenant in (("main", "b"), ("no-such", None), ("no-such", "a")):
        assert traffic.of(pool, tenant).total() == {}
    assert traffic.by_tenant().keys() == {"a"}


def test_the_usage_of_a_tenant_is_zero_after_an_hour_without_requests(
    traffic: ServedTraffic, clock: Clock
) -> None:
    traffic.count("main", "a", {"ok": 1})
    clock.minute += TENANT_MINUTES
    assert traffic.by_tenant() == {}
    assert traffic.of("main", "a").history(traffic.minute, POOL_MINUTES).counts == {}
    assert sum(traffic.of("main", None).history(traffic.minute, 360).counts["ok"]) == 1


def test_a_tenants_history_has_only_the_minutes_that_are_kept(traffic: ServedTraffic) -> None:
    traffic.count("main", "a", {"ok": 1})
    assert traffic.of("main", "a").history(traffic.minute, POOL_MINUTES).points == TENANT_MINUTES


def test_only_the_most_recent_of_many_tenants_are_kept(traffic: ServedTraffic) -> None:
    for number in range(SERIES_OF_TENANTS):
        traffic.count("main", f"{number}", {"ok": 1})
    traffic.count("main", "0", {"ok": 1})
    traffic.count("main", "new", {"ok": 1})
    kept = traffic.by_tenant()
    assert len(kept) == SERIES_OF_TENANTS
    assert kept["0"] == {"ok": 2} and "new" in kept and "1" not in kept
    assert traffic.of("main", None).total() == {"ok": SERIES_OF_TENANTS + 2}
