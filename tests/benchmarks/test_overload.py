"""What is offered three times over is the knee of a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.overload import run
from benchmarks.overload.knee import RateStep, knee_of
from benchmarks.overload.run import FIRST_RATE, PHASE_S, RULE, Phase, summary
from benchmarks.stand.fleet import BenchFleet
from benchmarks.stand.kept_parts import KeptParts
from benchmarks.stand.trace_player import ReplayedRequest
from cli.stream_client import Endpoint
from common.errors import Problem
from deployments.wire.engine_pass import EnginePasses
from simulator.traces import Trace


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


NOWHERE = Endpoint("gateway", "http://127.0.0.1:9", {})
FLEET = BenchFleet(NOWHERE, NOWHERE, "model", "", EnginePasses("secret"), Path())


def serving(
    monkeypatch: pytest.MonkeyPatch, meets: Callable[[float, int], bool]
) -> list[tuple[str, float]]:
    """Requests meet the SLO where `meets` says so of the rate and of how often it was offered. The
    traces that are played, with their rates, nearly."""
    played: list[tuple[str, float]] = []

    async def play(http: object, to: object, model: object, trace: Trace) -> list[ReplayedRequest]:
        rate = len(trace.requests) / trace.seconds
        played.append((trace.name, rate))
        ttft = 1.0 if meets(rate, len(played)) else 9.0
        return [ReplayedRequest(of.at, 200, ttft, sent_late=0.0) for of in trace.requests]

    monkeypatch.setattr(run, "play", play)
    monkeypatch.setattr(run, "SETTLE_S", 0.0)
    return played


def bench(http: Any = None) -> run.OverloadBench:
    return run.OverloadBench(http, FLEET, 5.0)


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
    traces = [run.steady("step", 5.0, 60.0, ((50, 300), (16, 16)), seed) for seed in (11, 12)]
    assert traces[0].requests != traces[1].requests


async def test_an_interrupted_run_resumes_after_the_last_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PHASE_S", "PROBES_S"):
        monkeypatch.setattr(run, name, 0.1)
    monkeypatch.setattr(run, "STEP_S", 20.0)
    played = serving(monkeypatch, lambda rate, _: rate < 4.0)
    kept = KeptParts(tmp_path / "kept", "overload", RULE)
    pairs = await run.measure(FLEET, 5.0, kept)
    assert len(pairs) == len(RULE.reported)
    played.clear()
    again = await run.measure(FLEET, 5.0, KeptParts(tmp_path / "kept", "overload", RULE))
    assert again == pairs
    assert "step" not in {name for name, _ in played}


def test_a_late_generator_is_noted_in_the_result() -> None:
    late = Phase(4.0, (ReplayedRequest(0.0, 200, ttft=1.0, sent_late=0.5),), 0.0)
    figures, _ = summary([(late, late)], slo_s=5.0)
    assert "the load generator was late" in figures["note"]
