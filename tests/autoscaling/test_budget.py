"""GPUs that pools share: who gets them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.budget import Wish, grants


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    minimum, more, warm = draw(st.tuples(*[st.integers(0, 20)] * 3))
    gpus = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0]))
    return Wish(minimum, minimum + more, minimum + more + warm, gpus)


many_wishes = st.dictionaries(st.sampled_from("abcd"), wishes(), min_size=1)


def test_what_fits_is_granted() -> None:
    assert grants({"a": Wish(1, 2, 3, 4.0), "b": Wish(0, 1, 1, 1.0)}, 13.0) == {"a": 3, "b": 1}


def test_who_has_the_smallest_share_of_its_demand_comes_next() -> None:
    assert grants({"a": Wish(1, 8, 8, 1.0), "b": Wish(1, 4, 4, 1.0)}, 6.0) == {"a": 4, "b": 2}


def test_demand_comes_before_another_pools_warm_replicas() -> None:
    calm, busy = Wish(1, 1, 3, 1.0), Wish(1, 4, 4, 1.0)
    assert grants({"calm": calm, "busy": busy}, 5.0) == {"calm": 1, "busy": 4}
    assert grants({"calm": calm, "busy": busy}, 6.0) == {"calm": 2, "busy": 4}


def test_minimums_come_before_all_demand() -> None:
    assert grants({"a": Wish(0, 9, 9, 1.0), "z": Wish(2, 2, 2, 1.0)}, 3.0) == {"a": 1, "z": 2}


@given(many_wishes, st.floats(0, 100))
def test_neither_a_wish_nor_the_budget_is_exceeded(wished: dict[str, Wish], budget: float) -> None:
    granted = grants(wished, budget)
    assert granted.keys() == wished.keys()
    assert all(0 <= granted[name] <= wish.target for name, wish in wished.items())
    used = sum(granted[name] * wish.gpus for name, wish in wished.items())
    assert used <= budget
    # nothing that somebody wants and that fits is left over
    for name, wish in wished.items():
        assert granted[name] == wish.target or used + wish.gpus > budget


@given(many_wishes, st.floats(0, 50))
def test_all_minimums_are_granted_where_they_fit(wished: dict[str, Wish], more: float) -> None:
    needed = sum(wish.minimum * wish.gpus for wish in wished.values())
    granted = grants(wished, needed + more)
    assert all(granted[name] >= wish.minimum for name, wish in wished.items())
