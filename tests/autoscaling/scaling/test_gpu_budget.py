"""GPUs that pools share: who gets them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.gpu_budget import GpuRequest, granted_now, grants


@st.composite
def requests(draw: st.DrawFn) -> GpuRequest:
    minimum, more, warm = draw(st.tuples(*[st.integers(0, 20)] * 3))
    gpus = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    return GpuRequest(minimum, minimum + more, minimum + more + warm, gpus)


many_requests = st.dictionaries(st.sampled_from("abcd"), requests(), min_size=1)


def test_requests_within_the_budget_are_granted() -> None:
    assert grants({"a": GpuRequest(1, 2, 3, 4.0), "b": GpuRequest(0, 1, 1, 1.0)}, 13.0) == {
        "a": 3,
        "b": 1,
    }


def test_the_pool_with_the_smallest_share_of_its_demand_comes_next() -> None:
    assert grants({"a": GpuRequest(1, 8, 8, 1.0), "b": GpuRequest(1, 4, 4, 1.0)}, 6.0) == {
        "a": 4,
        "b": 2,
    }


def test_demand_comes_before_another_pools_warm_replicas() -> None:
    calm, busy = GpuRequest(1, 1, 3, 1.0), GpuRequest(1, 4, 4, 1.0)
    assert grants({"calm": calm, "busy": busy}, 5.0) == {"calm": 1, "busy": 4}
    assert grants({"calm": calm, "busy": busy}, 6.0) == {"calm": 2, "busy": 4}


def test_minimums_come_before_all_demand() -> None:
    assert grants({"a": GpuRequest(0, 9, 9, 1.0), "z": GpuRequest(2, 2, 2, 1.0)}, 3.0) == {
        "a": 1,
        "z": 2,
    }


@given(many_requests, st.floats(0, 100))
def test_neither_a_request_nor_the_budget_is_exceeded(
    requested: dict[str, GpuRequest], budget: float
) -> None:
    granted = grants(requested, budget)
    assert granted.keys() == requested.keys()
    assert all(0 <= granted[name] <= request.target for name, request in requested.items())
    used = sum(granted[name] * request.gpus for name, request in requested.items())
    assert used <= budget
    # no GPU that a pool wants and that fits is left over
    for name, request in requested.items():
        assert granted[name] == request.target or used + request.gpus > budget


@given(many_requests, st.floats(0, 50))
def test_all_minimums_are_granted_where_they_fit(
    requested: dict[str, GpuRequest], more: float
) -> None:
    needed = sum(request.minimum * request.gpus for request in requested.values())
    granted = grants(requested, needed + more)
    assert all(granted[name] >= request.minimum for name, request in requested.items())


def test_a_pool_grows_only_into_gpus_that_no_replica_uses() -> None:
    calm = GpuRequest(1, 1, 1, gpus=4.0, current=3)
    busy = GpuRequest(1, 4, 4, gpus=4.0, current=1)
    # three of the calm pool still run, then two of them leave, then they have gone
    assert granted_now({"busy": busy, "calm": calm}, "busy", 16.0) == 1
    leaving = replace(calm, current=1, leaving=2)
    assert granted_now({"busy": busy, "calm": leaving}, "busy", 16.0) == 1
    gone = replace(calm, current=1)
    assert granted_now({"busy": busy, "calm": gone}, "busy", 16.0) == 3


def test_a_pools_own_replicas_that_leave_use_gpus_as_well() -> None:
    own = GpuRequest(1, 4, 4, gpus=4.0, current=2, leaving=2)
    assert granted_now({"own": own}, "own", 16.0) == 2
    assert granted_now({"own": replace(own, leaving=1)}, "own", 16.0) == 3


@st.composite
def present(draw: st.DrawFn) -> GpuRequest:
    current, leaving = draw(st.tuples(*[st.integers(0, 8)] * 2))
    return replace(draw(requests()), current=current, leaving=leaving)


def used(requested: dict[str, GpuRequest]) -> float:
    return sum((one.current + one.leaving) * one.gpus for one in requested.values())


@given(st.dictionaries(st.sampled_from("abcd"), present(), min_size=1), st.floats(0, 50))
def test_a_pool_that_follows_its_grant_keeps_all_pools_within_the_budget(
    requested: dict[str, GpuRequest], more: float
) -> None:
    budget = used(requested) + more
    for name, one in requested.items():
        target = granted_now(requested, name, budget)
        leaving = one.leaving + max(0, one.current - target)
        assert used({**requested, name: replace(one, current=target, leaving=leaving)}) <= budget


@given(many_requests, st.floats(0, 100))
def test_every_pool_gets_its_whole_share_once_no_replica_is_leaving(
    requested: dict[str, GpuRequest], budget: float
) -> None:
    shares = grants(requested, budget)
    there = {name: replace(one, current=shares[name]) for name, one in requested.items()}
    assert {name: granted_now(there, name, budget) for name in there} == shares
