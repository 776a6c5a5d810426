"""The knee of a sweep is the most that a fleet is offered and serves in time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.stand.knee import RateStep, knee_of
from benchmarks.stand.offered_load import FIRST_RATE, OverloadBench, steady
from common.errors import Problem
from tests.benchmarks.stand.offered import FLEET, serving


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
    with pytest.raises(Problem, match=remedy):
        knee_of(steps(*attained))


def bench(http: Any = None) -> OverloadBench:
    return OverloadBench(http, FLEET, 5.0)


async def test_the_sweep_ends_at_the_first_rate_that_is_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = serving(monkeypatch, lambda rate, _: rate < 4.0)
    assert 2.0 < await bench().knee(11) < 5.0
    assert [rate < 4.0 for _, rate in played] == [True] * (len(played) - 1) + [False]


async def test_a_first_rate_that_is_missed_once_is_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving(monkeypatch, lambda rate, count: count > 1 and rate < 4.0)
    assert await bench().knee(11) > FIRST_RATE


async def test_a_sweep_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    played = serving(monkeypatch, lambda *_: False)
    with pytest.raises(Problem, match=r"its first rate, 1/s, only 0\.0% met the SLO"):
        await bench().knee(11)
    assert len(played) == 2


async def test_each_seed_has_arrivals_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [steady("step", 5.0, 60.0, seed) for seed in (11, 12)]
    assert traces[0].requests != traces[1].requests
