"""The knee of a sweep is the most that a fleet is offered and serves in time."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.load.offered_load import FIRST_RATE, STEP, STEPS, OverloadBench, steady
from common.errors import Problem
from tests.benchmarks.harness.load.offered import FLEET, serving


def bench(http: Any = None) -> OverloadBench:
    return OverloadBench(http, FLEET, 5.0)


@pytest.mark.parametrize("too_much_at", [2, 5])
async def test_the_knee_is_the_last_rate_before_the_first_overloaded_one(
    too_much_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = serving(monkeypatch, lambda _, count: count != too_much_at)
    assert await bench().knee(11) == FIRST_RATE * STEP ** (too_much_at - 2)
    assert len(played) == too_much_at


async def test_the_error_of_an_endless_sweep_states_what_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = serving(monkeypatch, lambda *_: True)
    with pytest.raises(Problem, match="raise `steps`"):
        await bench().knee(11)
    assert len(played) == STEPS


async def test_a_first_rate_that_is_missed_once_is_offered_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving(monkeypatch, lambda rate, count: count > 1 and rate < 4.0)
    assert await bench().knee(11) > FIRST_RATE


async def test_the_error_of_a_sweep_that_cannot_start_states_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    played = serving(monkeypatch, lambda *_: False)
    with pytest.raises(Problem, match=r"rate, 1/s, only 0\.0% met the SLO.*`first`"):
        await bench().knee(11)
    assert len(played) == 2


async def test_each_seed_has_different_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [steady("step", 5.0, 60.0, seed) for seed in (11, 12)]
    assert traces[0].requests != traces[1].requests
