"""What is played: faults are found, equals are promoted, and conversations stay."""

from dataclasses import replace

import pytest

from benchmarks.canary.played import CanaryFault, CanaryTraffic, Ended, play
from benchmarks.canary.run import EQUALS, FAULTS, figures_of, goals_of
from benchmarks.canary.split import Split, split
from deployments.fleet.settings.model_names import CanarySettings

CANARY = CanarySettings(pool="canary", steps=[20, 100], step_s=20.0, requests=20)
PLAY = CanaryTraffic(gateways=4, rate=40.0, wave=0.5, wave_s=600.0, settings=CANARY)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_canary_is_aborted_by_its_time_per_token(seed: int) -> None:
    ended = play(PLAY, CanaryFault(tpot=4.0), seed, warm_up_s=60.0, most_requests=500)
    assert ended.status == "aborted"
    assert "time per output token" in ended.why
    # more are sent before the first has ended
    assert 3 < ended.requests < 80


@pytest.mark.parametrize("seed", range(3))
def test_an_equal_canary_is_promoted_while_times_rise(seed: int) -> None:
    ended = play(PLAY, CanaryFault(), seed, warm_up_s=60.0, most_requests=50_000)
    assert (ended.status, ended.why) == ("promoted", "All steps passed.")
    assert ended.seconds > 40.0


async def test_conversations_stay_while_weights_are_reversed(redis_url: str) -> None:
    found = await split(redis_url, 3, {"a": 3.0, "b": 1.0}, requests=800, turns=4, seed=5)
    assert found.moved == 0
    assert found.furthest < 0.15


def test_the_goals_count_all_runs_and_the_worst_split() -> None:
    soon, late = Ended("aborted", 20, 30.0, "slow"), Ended("aborted", 21, 10.1, "slow")
    kinds = [(kind, soon) for kind in FAULTS]
    equals = [(EQUALS, replace(soon, status=status)) for status in ("promoted", "aborted")]
    found = [*kinds, ("three_times_tpot", late), *equals]
    figures = figures_of(found, [Split(0.001, 0), Split(0.02, 0)])
    goals = goals_of(figures)
    assert {name: (goal["figure"], goal["met"]) for name, goal in goals.items()} == {
        "three_times_tpot_off_in_time": (0.5, False),
        "five_percent_errors_off_in_time": (1.0, True),
        "equals_aborted": (0.5, False),
        "furthest_from_weights": (0.02, False),
        "conversations_moved": (0, True),
    }
