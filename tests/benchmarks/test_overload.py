"""What is offered three times over is the knee of a sweep."""

from __future__ import annotations

import pytest

from benchmarks.overload.knee import RateStep, knee_of
from benchmarks.overload.run import PHASE_S, RULE, Phase, summary
from benchmarks.trace_player import ReplayedRequest


def steps(*attained: float) -> list[RateStep]:
    return [RateStep(2.0**number, share) for number, share in enumerate(attained)]


@pytest.mark.parametrize(
    ("attained", "knee"),
    [((1.0, 1.0, 0.5), 2.0), ((1.0, 0.5, 1.0), 1.0), ((1.0, 0.995, 0.99, 0.98), 4.0)],
)
def test_the_knee_is_the_last_rate_before_the_first_that_is_too_much(
    attained: tuple[float, ...], knee: float
) -> None:
    assert knee_of(steps(*attained)) == knee


@pytest.mark.parametrize(("attained", "remedy"), [((0.5,), "lower `first`"), ((1.0,) * 3, "raise")])
def test_a_sweep_without_a_knee_says_what_to_change(
    attained: tuple[float, ...], remedy: str
) -> None:
    with pytest.raises(RuntimeError, match=remedy):
        knee_of(steps(*attained))


def phase(rate: float, held: int, late: int = 0, refused: int = 0, recovered_s: float = 0) -> Phase:
    outcomes = [
        *[ReplayedRequest(0.0, 200, ttft=1.0)] * held,
        *[ReplayedRequest(0.0, 200, ttft=6.5)] * late,
        *[ReplayedRequest(0.0, 429, retry_after="3")] * refused,
    ]
    return Phase(rate, tuple(outcomes), recovered_s)


def test_a_fleet_that_serves_less_beyond_its_knee_misses_the_goal() -> None:
    pairs = [(phase(4.0, 240), phase(12.0, held, refused=400)) for held in (230, 200, 250)]
    figures, goals = summary(pairs, slo_s=5.0)
    goodput = goals["goodput_of_that_at_the_knee"]
    assert (goodput["figure"], goodput["met"]) == (pytest.approx(230 / 240, abs=1e-4), False)
    assert figures["offered_requests_per_s"] == [12.0] * 3
    assert figures["goodput_per_s"][0] == round(230 / PHASE_S, 3)


def test_one_fast_seed_does_not_meet_the_goal_of_the_tail() -> None:
    slow, fast = phase(12.0, 100, late=20), phase(12.0, 120)
    _, goals = summary([(phase(4.0, 100), over) for over in (slow, slow, fast)], slo_s=5.0)
    assert not goals["tail_ttft_of_the_slo"]["met"]
    assert goals["tail_ttft_of_the_slo"]["range"] == [0.2, 1.3]


def test_a_500_is_no_fair_answer() -> None:
    broken = Phase(12.0, (ReplayedRequest(0.0, 500), ReplayedRequest(0.0, 200, ttft=1.0)), 0.0)
    _, goals = summary([(phase(4.0, 1), broken)], slo_s=5.0)
    assert not goals["answers_that_are_neither_success_nor_429_with_retry_after"]["met"]


def test_three_times_the_knee_is_offered() -> None:
    assert RULE.settings["times_knee"] == 3.0
