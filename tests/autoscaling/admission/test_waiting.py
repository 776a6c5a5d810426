"""Queues of requests that wait for their turn: bounded, and fair between tenants."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.fair_share import TENANTS_KEPT, FairShare
from autoscaling.admission.waiting import Waiter, WaitingRoom
from benchmarks.soak.held_items import held_items

tenants = st.sampled_from("abc")


def entered(room: WaitingRoom[str], what: str, tenant: str, since: float = 0.0) -> Waiter[str]:
    waiter = Waiter(what, tenant, 1.0, since)
    room.enter(waiter)
    return waiter


def drained(room: WaitingRoom[str]) -> list[str]:
    served = []
    while waiter := room.next():
        served.append(waiter.what)
        room.leave(waiter)
    return served


def test_tenants_take_turns_each_with_its_oldest_first() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    for what in ("a1", "a2", "a3", "b1", "c1", "c2"):
        entered(room, what, what[0])
    assert drained(room) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_a_request_that_leaves_early_costs_its_tenant_no_turn() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    _, second = entered(room, "a1", "a"), entered(room, "a2", "a")
    entered(room, "b1", "b")
    room.leave(second)
    room.leave(second)
    assert drained(room) == ["a1", "b1"]


def test_a_full_queue_rejects_further_requests() -> None:
    room: WaitingRoom[str] = WaitingRoom(1)
    first = entered(room, "a1", "a")
    assert room.full
    with pytest.raises(OverflowError):
        entered(room, "b1", "b")
    room.leave(first)
    assert not room.full


def test_a_queue_reports_its_length_work_tenants_and_oldest_wait() -> None:
    room: WaitingRoom[str] = WaitingRoom(10)
    assert (len(room), room.work_s, room.by_tenant, room.oldest_s(9.0)) == (0, 0, {}, 0.0)
    entered(room, "a1", "a", since=5.0)
    entered(room, "b1", "b", since=2.0)
    entered(room, "b2", "b", since=7.0)
    assert (len(room), room.work_s, room.oldest_s(9.0)) == (3, 3.0, 7.0)
    assert room.by_tenant == {"a": 1, "b": 2}


@given(st.lists(tenants, max_size=30))
def test_no_request_is_lost_and_a_tenant_waits_for_at_most_one_of_each_other(order: str) -> None:
    room: WaitingRoom[str] = WaitingRoom(100)
    for number, tenant in enumerate(order):
        entered(room, f"{tenant}{number}", tenant)
    served = drained(room)
    assert sorted(served) == sorted(f"{t}{n}" for n, t in enumerate(order))
    for tenant in set(order):
        own = [int(what[1:]) for what in served if what[0] == tenant]
        assert own == sorted(own)
        turns = [place for place, what in enumerate(served) if what[0] == tenant]
        assert all(b - a <= len(set(order)) for a, b in pairwise(turns))


def entering(
    room: WaitingRoom[str], what: str, work_s: float = 1.0
) -> tuple[Waiter[str], Waiter[str] | None]:
    """A waiter of the tenant that its name begins with, and who had to leave for it."""
    waiter = Waiter(what, what[0], work_s, 0.0)
    return waiter, room.enter(waiter)


def test_turns_are_by_engine_seconds_and_not_by_requests() -> None:
    shares = FairShare()
    room: WaitingRoom[str] = WaitingRoom(100, shares)
    for number in range(20):
        entering(room, f"a{number}", 4.0)
        entering(room, f"b{number}", 1.0)
    had = {"a": 0.0, "b": 0.0}
    for _ in range(20):
        waiter = room.next()
        assert waiter is not None
        room.leave(waiter)
        shares.charge(waiter.tenant, waiter.work_s)
        had[waiter.tenant] += waiter.work_s
    assert abs(had["a"] - had["b"]) <= 4.0


def test_a_tenant_with_weight_two_gets_twice_the_share() -> None:
    shares = FairShare()
    shares.weights = {"a": 2.0}
    room: WaitingRoom[str] = WaitingRoom(100, shares)
    for number in range(30):
        entering(room, f"a{number}")
        entering(room, f"b{number}")
    served = []
    for _ in range(30):
        waiter = room.next()
        assert waiter is not None
        room.leave(waiter)
        shares.charge(waiter.tenant, waiter.work_s)
        served.append(waiter.tenant)
    assert served.count("a") == 20


def test_confirmed_work_replaces_the_expected_work() -> None:
    shares = FairShare()
    room: WaitingRoom[str] = WaitingRoom(10, shares)
    for tenant in "ab":
        shares.charge(tenant, 1.0)
    shares.settle("a", 5.0)
    entering(room, "a1"), entering(room, "b1"), entering(room, "b2"), entering(room, "b3")
    first = room.next()
    assert first is not None
    assert first.what == "b1"


def test_an_unused_share_of_a_tenant_is_not_saved_up() -> None:
    shares = FairShare()
    for _ in range(100):
        shares.charge("busy", 1.0)
    room: WaitingRoom[str] = WaitingRoom(10, shares)
    assert shares.had("new") >= 99.0
    # and what it used alone is not held against it
    entering(room, "n1", 1.0)
    assert room.ahead_s("busy") <= 2.0


def test_a_full_queue_rejects_the_newest_request_of_the_tenant_with_the_most() -> None:
    room: WaitingRoom[str] = WaitingRoom(4)
    for what in ("a1", "a2", "a3", "a4"):
        entering(room, what)
    assert not room.takes("a")
    with pytest.raises(OverflowError):
        entering(room, "a5")
    gone = []
    for what in ("b1", "b2"):
        assert room.takes("b")
        gone.append(entering(room, what)[1])
    assert [waiter.what for waiter in gone if waiter] == ["a4", "a3"]
    assert not room.takes("b")
    assert room.by_tenant == {"a": 2, "b": 2}
    evicted = entering(room, "c1")[1]
    assert evicted is not None
    assert evicted.tenant in "ab"
    # each has one or two: no tenant's only request leaves for another
    assert not room.takes("b")


def test_a_full_queue_never_drops_the_only_request_of_a_tenant() -> None:
    room: WaitingRoom[str] = WaitingRoom(2)
    entering(room, "a1"), entering(room, "b1")
    assert not room.takes("c")


def test_a_new_tenant_waits_for_its_share_and_not_for_the_queue_of_another() -> None:
    room: WaitingRoom[str] = WaitingRoom(1000)
    for number in range(117):
        entering(room, f"a{number}", 2.0)
    assert room.ahead_s("a") == 234.0
    assert room.ahead_s("b") == 2.0
    entering(room, "b1", 1.0)
    assert room.ahead_s("b") == 1.0 + 1.0 + 2.0


def test_shares_are_kept_for_a_bounded_number_of_tenants() -> None:
    shares = FairShare()
    shares.charge("stays", 5.0)
    for number in range(TENANTS_KEPT - 1):
        shares.charge(f"comes and goes {number}", 1.0)
    assert shares.had("stays") == 5.0
    shares.charge("stays", 5.0)
    for number in range(TENANTS_KEPT - 1):
        shares.charge(f"another {number}", 1.0)
    had = shares.had("stays")
    assert had >= 10.0
    shares.charge("one more", 1.0)
    assert shares.had("stays") < had
    assert held_items(shares).total() == TENANTS_KEPT
