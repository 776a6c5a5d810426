"""The room where batch requests wait: bounded, and fair between tenants."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.waiting import BatchQueue, Waiter

tenants = st.sampled_from("abc")


def entered(room: BatchQueue[str], what: str, tenant: str, since: float = 0.0) -> Waiter[str]:
    waiter = Waiter(what, tenant, 1.0, since)
    room.enter(waiter)
    return waiter


def drained(room: BatchQueue[str]) -> list[str]:
    served = []
    while waiter := room.next():
        served.append(waiter.what)
        room.leave(waiter)
    return served


def test_tenants_take_turns_each_with_its_oldest_first() -> None:
    room: BatchQueue[str] = BatchQueue(10)
    for what in ("a1", "a2", "a3", "b1", "c1", "c2"):
        entered(room, what, what[0])
    assert drained(room) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_who_goes_out_of_turn_costs_its_tenant_no_turn() -> None:
    room: BatchQueue[str] = BatchQueue(10)
    _, second = entered(room, "a1", "a"), entered(room, "a2", "a")
    entered(room, "b1", "b")
    room.leave(second)
    room.leave(second)
    assert drained(room) == ["a1", "b1"]


def test_it_takes_no_more_than_its_limit() -> None:
    room: BatchQueue[str] = BatchQueue(1)
    first = entered(room, "a1", "a")
    assert room.full
    with pytest.raises(OverflowError):
        entered(room, "b1", "b")
    room.leave(first)
    assert not room.full


def test_what_it_shows() -> None:
    room: BatchQueue[str] = BatchQueue(10)
    assert (len(room), room.work_s, room.by_tenant, room.oldest_s(9.0)) == (0, 0, {}, 0.0)
    entered(room, "a1", "a", since=5.0)
    entered(room, "b1", "b", since=2.0)
    entered(room, "b2", "b", since=7.0)
    assert (len(room), room.work_s, room.oldest_s(9.0)) == (3, 3.0, 7.0)
    assert room.by_tenant == {"a": 1, "b": 2}


@given(st.lists(tenants, max_size=30))
def test_nobody_is_lost_and_no_tenant_waits_for_more_than_one_of_each_other(order: str) -> None:
    room: BatchQueue[str] = BatchQueue(100)
    for number, tenant in enumerate(order):
        entered(room, f"{tenant}{number}", tenant)
    served = drained(room)
    assert sorted(served) == sorted(f"{t}{n}" for n, t in enumerate(order))
    for tenant in set(order):
        own = [int(what[1:]) for what in served if what[0] == tenant]
        assert own == sorted(own)
        turns = [place for place, what in enumerate(served) if what[0] == tenant]
        assert all(b - a <= len(set(order)) for a, b in pairwise(turns))
