"""Each tenant's use of a pool, weighted, and who has used it lately."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.fair_share import TENANT_ACTIVE_S, TENANTS_KEPT, ActiveTenants, FairShare
from autoscaling.admission.waiting import Waiter, WaitingRoom

seconds = st.floats(0.0, 1000.0)


def shares_of(**weights: float) -> FairShare:
    shares = FairShare()
    shares.weights = weights
    return shares


def test_a_tenant_with_twice_the_weight_gets_twice_the_engine_seconds() -> None:
    shares = shares_of(big=2.0)
    assert (shares.until("big", 3.0), shares.until("small", 3.0)) == (6.0, 3.0)
    assert (shares.after("big", 6.0), shares.after("small", 6.0)) == (3.0, 6.0)
    shares.charge("big", 4.0)
    assert (shares.had("big"), shares.until("big", 3.0)) == (2.0, 2.0)
    shares.settle("big", -2.0)
    assert (shares.had("big"), shares.until("big", 3.0)) == (1.0, 4.0)


def test_a_tenant_ahead_of_a_position_has_no_work_left_until_it() -> None:
    shares = FairShare()
    shares.charge("a", 5.0)
    assert shares.until("a", 3.0) == 0.0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), seconds), max_size=10),
    st.fixed_dictionaries({tenant: st.floats(0.1, 10.0) for tenant in "abc"}),
    st.sampled_from("abc"),
    seconds,
)
def test_after_and_until_are_inverse_for_every_weight(
    charged: list[tuple[str, float]], weights: dict[str, float], tenant: str, work_s: float
) -> None:
    shares = shares_of(**weights)
    for other, of_other_s in charged:
        shares.charge(other, of_other_s)
    assert shares.until(tenant, shares.after(tenant, work_s)) == pytest.approx(work_s, abs=1e-6)


def test_a_returning_tenant_starts_at_the_position_of_the_others() -> None:
    shares = FairShare()
    for _ in range(5):
        shares.charge("busy", 2.0)
    assert (shares.had("busy"), shares.had("new")) == (10.0, 8.0)
    shares.charge("new", 1.0)
    assert shares.had("new") == 9.0


def test_a_correction_of_an_unknown_tenants_charge_changes_nothing() -> None:
    shares = FairShare()
    shares.settle("a", 5.0)
    assert shares.had("a") == 0.0


def test_the_tenants_that_were_charged_longest_ago_are_forgotten() -> None:
    shares = FairShare()
    for number in range(TENANTS_KEPT):
        shares.charge(f"t{number}", 1.0)
    shares.charge("t0", 1.0)
    shares.charge("new", 0.0)
    # t1 was charged longest ago: nothing is left to correct
    shares.settle("t0", 5.0)
    shares.settle("t1", 5.0)
    assert shares.had("t0") == 7.0
    assert shares.had("t1") == shares.had("unknown")


def test_the_wait_behind_a_tenant_with_more_weight_is_longer() -> None:
    """A request behind four seconds of work of each tenant's queue."""

    def ahead_s(weight: float) -> float:
        shares = shares_of(other=weight)
        room: WaitingRoom[str] = WaitingRoom(100, shares)
        for tenant in ("own", "other"):
            for _ in range(20 if tenant == "other" else 4):
                room.enter(Waiter("one", tenant, 1.0, 0.0))
        return room.ahead_s("own")

    # its four, those of the other until then, and the one in which that is reached
    assert (ahead_s(1.0), ahead_s(2.0), ahead_s(0.5)) == (4 + 4 + 1, 4 + 8 + 1, 4 + 2 + 1)


def test_a_pool_is_shared_while_two_tenants_have_recent_requests() -> None:
    active = ActiveTenants()
    assert not active.are_several
    active.heard_of("a", 1000.0)
    active.heard_of("a", 1001.0)
    assert not active.are_several
    active.heard_of("b", 1002.0)
    assert active.are_several


@pytest.mark.parametrize(("silent_s", "several"), [(600.0, True), (600.1, False)])
def test_a_tenant_counts_for_ten_minutes_after_its_last_request(
    silent_s: float, several: bool
) -> None:
    active = ActiveTenants()
    active.heard_of("a", 1000.0)
    active.heard_of("b", 1500.0)
    active.heard_of("b", 1000.0 + silent_s)
    assert active.are_several == several


def test_a_silent_tenant_expires_behind_one_that_is_known_longer() -> None:
    active = ActiveTenants()
    active.heard_of("steady", 0.0)
    active.heard_of("guest", 1.0)
    for minute in range(1, 11):
        active.heard_of("steady", 60.0 * minute)
    assert active.are_several
    active.heard_of("steady", 1.1 + TENANT_ACTIVE_S)
    assert not active.are_several


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 400.0)), min_size=1, max_size=20))
def test_only_tenants_with_a_request_in_the_last_ten_minutes_are_active(
    heard: list[tuple[str, float]],
) -> None:
    active, now, last = ActiveTenants(), 0.0, dict[str, float]()
    for tenant, later_s in heard:
        now += later_s
        active.heard_of(tenant, now)
        last[tenant] = now
        recent = [at for at in last.values() if now - at <= TENANT_ACTIVE_S]
        assert active.are_several == (len(recent) > 1)
