"""The benchmark of adapters, without engines."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.adapters.run import SLOTS
from benchmarks.adapters.traffic import (
    AdapterArrival,
    Answered,
    least_loads,
    wrong,
    zipf,
)


def arrivals(adapters: str) -> list[AdapterArrival]:
    return [AdapterArrival(float(at), 0, name) for at, name in enumerate(adapters)]


def fewest(warm_up: str, asked: str, slots: int) -> int:
    """Of every choice of what to evict, those with the fewest loads in all."""

    @cache
    def after(held: frozenset[str], place: int) -> tuple[int, int]:
        """All loads, and those that count."""
        if place == len(warm_up + asked):
            return 0, 0
        adapter = (warm_up + asked)[place]
        if adapter in held:
            return after(held, place + 1)
        rest = [held - {one} for one in held] if len(held) == slots else [held]
        every, counted = min(after(one | {adapter}, place + 1) for one in rest)
        return every + 1, counted + (place >= len(warm_up))

    return after(frozenset(), 0)[0]


@given(st.text("abcdef", max_size=9), st.integers(1, 3))
def test_the_optimum_equals_an_exhaustive_search(asked: str, slots: int) -> None:
    assert least_loads([], arrivals(asked), slots) == fewest("", asked, slots)


def test_loads_of_the_warm_up_do_not_count() -> None:
    assert least_loads(arrivals("ab"), arrivals("abc"), 3) == 1
    assert least_loads(arrivals("ab"), arrivals("cab"), 2) == 2


def test_the_fleet_has_slots_for_a_few_of_the_adapters() -> None:
    assert SLOTS == 8


def test_ranks_follow_the_zipf_distribution_and_depend_on_the_seed() -> None:
    names = [f"a{number}" for number in range(10)]
    asked = zipf(names, 100.0, 100.0, 1.0, 1)
    share = sum(one.rank == 0 for one in asked) / len(asked)
    assert abs(share - 1 / sum(1 / place for place in range(1, 11))) < 0.02
    first = {zipf(names, 100.0, 1.0, 1.0, seed)[0].adapter for seed in range(20)}
    assert len(first) > 3


def test_an_answer_computed_with_the_wrong_weights_is_detected() -> None:
    one, another = (-0.5, -1.0), (-0.6, -1.0)
    known = {"a@1": one, "a@2": another}
    asked = AdapterArrival(0.0, 0, "a")
    right = Answered(asked, 200, 0.1, "a@1", (-0.501, -1.0))
    other = Answered(asked, 200, 0.1, "a@1", another)
    lost = Answered(asked, 0)
    assert wrong([right, other, lost], known) == [other]
