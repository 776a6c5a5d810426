"""Looks at an engine, and what is made of them."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.engine.vllm.watch.heartbeat import LoopPhase
from deployments.engine.watchdog.hang import (
    LATE_S,
    MUTE,
    MUTE_BEATS,
    PERIOD_S,
    SILENT,
    STOPPED,
    EngineHealth,
    Judge,
    Look,
    step_limits,
)
from tests.some import some

AT_REST = Look(0.0, 1, LoopPhase.IDLE, inf, replica_beats=1, probe=0, quiet=True)


class Looked:
    """At an engine, every PERIOD_S; `late_s` is how much later it was."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.seen = AT_REST
        self.verdict = self.judge.look(AT_REST)

    def again(self, late_s: float = 0.0, **now: Any) -> EngineHealth:
        beats = self.seen.replica_beats + 1
        at = self.seen.at + PERIOD_S + late_s
        self.seen = replace(self.seen, **{"replica_beats": beats, **now}, at=at)
        self.verdict = self.judge.look(self.seen)
        return self.verdict

    def seconds_until(self, verdict: EngineHealth, within_s: float = 60.0, **now: Any) -> float:
        began = self.seen.at
        while self.again(**now) < verdict:
            assert self.seen.at - began < within_s, "never"
        return self.seen.at - began

    def never(self, within_s: float = 600.0, **now: Any) -> None:
        ends = self.seen.at + within_s
        while self.seen.at < ends:
            assert self.again(**now) is EngineHealth.HEALTHY, self.judge.why


def test_a_step_beyond_its_bound_is_suspected_and_then_considered_hung() -> None:
    looked, limits = Looked(), step_limits(0.8)
    looked.again(phase=LoopPhase.STEP, bound_s=0.8, beats=2)
    found = looked.seconds_until(EngineHealth.SUSPECT)
    assert limits.suspect_s <= found <= limits.suspect_s + PERIOD_S
    found += looked.seconds_until(EngineHealth.HUNG)
    assert limits.hung_s <= found <= limits.hung_s + PERIOD_S
    assert "0.80 s" in looked.judge.why


def test_an_engine_that_recovers_from_a_hang_is_healthy_again() -> None:
    """Where it was not ended."""
    looked = Looked()
    looked.again(phase=LoopPhase.STEP, bound_s=0.1, beats=2)
    looked.seconds_until(EngineHealth.HUNG)
    assert looked.again(beats=3) is EngineHealth.HEALTHY
    assert looked.seconds_until(EngineHealth.HUNG) >= step_limits(0.1).hung_s


def test_a_suspect_whose_step_ends_is_healthy_again() -> None:
    looked = Looked()
    looked.again(phase=LoopPhase.STEP, bound_s=0.1, beats=2)
    looked.seconds_until(EngineHealth.SUSPECT)
    assert looked.again(beats=3) is EngineHealth.HEALTHY
    assert looked.seconds_until(EngineHealth.SUSPECT) >= step_limits(0.1).suspect_s


def test_a_stopped_process_is_suspected_at_once_and_hung_soon() -> None:
    looked = Looked()
    assert looked.again(stopped=True) is EngineHealth.HEALTHY
    assert looked.seconds_until(EngineHealth.SUSPECT, stopped=True) <= STOPPED.suspect_s
    assert looked.again(stopped=False) is EngineHealth.HEALTHY
    assert looked.seconds_until(EngineHealth.HUNG, stopped=True) == pytest.approx(STOPPED.hung_s)


def test_an_unresponsive_idle_engine_is_detected() -> None:
    looked = Looked()
    assert looked.seconds_until(EngineHealth.HUNG, probe=1) <= SILENT.hung_s + 2 * PERIOD_S


def seconds_until_verdict(
    looked: Looked, verdict: EngineHealth, beats: int, within_s: float = 60.0
) -> float:
    """Seconds until that is the verdict on an engine that steps, and leaves a question open."""
    began = looked.seen.at
    while looked.again(phase=LoopPhase.STEP, beats=looked.seen.beats + beats, probe=1) < verdict:
        assert looked.seen.at - began < within_s, "never"
    return looked.seen.at - began


def test_an_unresponsive_engine_that_still_steps_is_detected() -> None:
    looked = Looked()
    assert seconds_until_verdict(looked, EngineHealth.SUSPECT, beats=30) >= MUTE.suspect_s
    seconds_until_verdict(looked, EngineHealth.HUNG, beats=30)
    assert looked.seen.at <= MUTE.hung_s + 2 * PERIOD_S
    assert "it works, but does not answer" in looked.judge.why


def test_an_engine_with_long_steps_may_take_as_long_to_answer() -> None:
    """It takes a question between two steps."""
    looked, steps = Looked(), MUTE_BEATS // 3
    for _ in some(range(steps - 1)):
        for beats in (1, 1, 1, *[0] * 9):
            now = {"beats": looked.seen.beats + beats, "probe": 1, "quiet": False}
            assert looked.again(phase=LoopPhase.STEP, **now) is EngineHealth.HEALTHY


def test_an_engine_that_answers_while_it_steps_is_healthy() -> None:
    looked = Looked()
    for number in range(1, 500):
        for probe in (number, number, number, 0):
            now = {"beats": looked.seen.beats + 30, "probe": probe}
            assert looked.again(phase=LoopPhase.STEP, **now) is EngineHealth.HEALTHY


def test_an_idle_engine_that_answers_is_healthy() -> None:
    looked = Looked()
    for number in range(1, 1000):
        for probe in (number, number, 0, 0):
            assert looked.again(probe=probe) is EngineHealth.HEALTHY


@pytest.mark.parametrize(
    "case",
    [
        {"phase": LoopPhase.UNWATCHED, "stopped": True, "probe": 1},
        {"phase": LoopPhase.STEP, "bound_s": inf, "beats": 2, "probe": 1},
        {"phase": LoopPhase.OTHER, "beats": 2, "probe": 1},
        # the replica's own event loop does not run: it could not have taken the answer
        {"probe": 1, "replica_beats": 7},
        {"phase": LoopPhase.STEP, "bound_s": 0.1, "beats": 2, "quiet": False},
        {"probe": 1, "quiet": False},
    ],
    ids=["starts", "unbounded", "utility", "replica stands still", "computes", "idle and starved"],
)
def test_a_legitimate_or_ambiguous_pause_is_not_a_hang(case: dict[str, Any]) -> None:
    Looked().never(**case)


steps = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),  # its bound
        st.floats(0.0, 1.0),  # what it takes of that
        # looks while it got no core: how much later each came than it should
        st.lists(st.floats(0.0, 30.0), max_size=30),
    ),
    max_size=30,
)


@given(steps)
def test_cpu_starvation_alone_is_never_considered_a_hang(
    steps: list[tuple[float, float, list[float]]],
) -> None:
    """Steps within their bounds, stretched: while cores are unavailable the witness may be late,
    too."""
    looked = Looked()
    for number, (bound_s, share, starved) in enumerate(steps, start=2):
        began = looked.seen.at
        looked.again(phase=LoopPhase.STEP, bound_s=bound_s, beats=number, quiet=False)
        computing = int(bound_s * share / PERIOD_S)
        for late_s in starved:
            looked.again(late_s, quiet=late_s > LATE_S)
            assert looked.verdict is EngineHealth.HEALTHY, (began, looked.judge.why)
        for _ in range(computing):
            assert looked.again(quiet=True) is EngineHealth.HEALTHY, looked.judge.why
