"""How long replicas stay after they were needed last."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.holding import (
    MARGIN,
    MAX_HOLD_S,
    REMEMBERED_S,
    SURGE_HOLD_S,
    ReplicaHold,
    raised,
    replicas_held,
    watched,
)

HOLD_S = 30.0


def play(*needs: tuple[float, int]) -> tuple[ReplicaHold, ...]:
    """The levels after N replicas were needed from each time on, until the last time."""
    levels: tuple[ReplicaHold, ...] = ()
    for (begin, needed), (end, _) in pairwise(needs):
        for second in range(int(begin), int(end)):
            levels = watched(levels, needed, float(second), 1.0, HOLD_S)
    return levels


def test_unneeded_replicas_are_held_for_a_while() -> None:
    levels = play((0, 4), (10, 2), (20, 2))
    assert replicas_held(levels, 9.0 + HOLD_S - 1) == 4
    assert replicas_held(levels, 9.0 + HOLD_S) == 2


def test_replicas_needed_again_after_a_pause_are_held_for_longer_than_it() -> None:
    levels = play((0, 4), (10, 2), (110, 4), (120, 2), (130, 2))
    assert replicas_held(levels, 119.0 + 100.0) == 4
    assert replicas_held(levels, 119.0 + MARGIN * 102.0) == 0


def test_replicas_are_held_through_a_second_pause_of_the_same_length() -> None:
    """What was learned faded so soon that long pauses outlasted it."""
    levels = play((0, 4), (10, 2), (395, 4), (410, 2), (810, 2))
    assert replicas_held(levels, 809.0) == 4


def test_the_replicas_of_a_surge_are_held_for_long() -> None:
    levels = [ReplicaHold(0.0, HOLD_S)] * 4
    assert replicas_held(raised(levels, 2, 4), SURGE_HOLD_S - 1) == 4
    assert replicas_held(raised(levels, 3, 4), SURGE_HOLD_S - 1) == 0
    assert raised(levels, 2, 4)[:2] == tuple(levels[:2])


def test_replicas_needed_again_much_later_are_held_for_the_default_time() -> None:
    levels = play((0, 4), (10, 2), (1000, 4), (1010, 2), (1020, 2))
    assert replicas_held(levels, 1009.0 + HOLD_S) == 2


def test_a_pause_of_up_to_ten_minutes_is_learned_and_nothing_is_held_longer() -> None:
    levels = (ReplicaHold(0.0, HOLD_S),)
    assert watched(levels, 1, 100.0, 1.0, HOLD_S) == (ReplicaHold(100.0, 150.0),)
    assert watched(levels, 1, MAX_HOLD_S, 1.0, HOLD_S) == (ReplicaHold(MAX_HOLD_S, MAX_HOLD_S),)
    later = MAX_HOLD_S + 1.0
    assert watched(levels, 1, later, 1.0, HOLD_S) == (ReplicaHold(later, HOLD_S),)


def test_a_longer_configured_hold_time_takes_effect_at_once() -> None:
    for silent_s in (1.0, 9 * REMEMBERED_S):
        levels = watched((ReplicaHold(0.0, HOLD_S),), 0, silent_s, silent_s, 2 * HOLD_S)
        assert levels[0].hold_s == 2 * HOLD_S


def test_a_learned_hold_time_is_forgotten_after_a_long_silence() -> None:
    learned = (ReplicaHold(0.0, MAX_HOLD_S),)
    for silent_s in (REMEMBERED_S, 9 * REMEMBERED_S):
        assert watched(learned, 0, silent_s, silent_s, HOLD_S)[0].hold_s == HOLD_S


def test_a_surge_shortens_no_hold_time() -> None:
    levels = [ReplicaHold(0.0, 2 * SURGE_HOLD_S)] * 4
    assert raised(levels, 2, 4) == tuple(levels)


def test_a_separate_hold_time_is_learned_for_each_number_of_replicas() -> None:
    levels = play((0, 4), (10, 2), (110, 3), (120, 2), (130, 2))
    assert replicas_held(levels, 119.0 + 100.0) == 3


def test_a_learned_hold_time_fades() -> None:
    later = 110.0 + 5.0 * REMEMBERED_S
    levels = play((0, 4), (10, 2), (110, 4), (later, 2), (later + 1.0, 2))
    assert levels[3].hold_s < 1.3 * HOLD_S


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 8)), min_size=1), st.floats(0, 1000))
def test_needed_replicas_are_held_and_unneeded_ones_are_removed_eventually(
    steps: list[tuple[float, int]], hold_s: float
) -> None:
    levels: tuple[ReplicaHold, ...] = ()
    now = 0.0
    for elapsed, needed in steps:
        now += elapsed
        levels = watched(levels, needed, now, elapsed, hold_s)
        assert replicas_held(levels, now) >= (needed if hold_s > 0 else 0)
    assert replicas_held(levels, now + max(MAX_HOLD_S, hold_s) + 1) == 0
