"""What is learned of speculation, and what is done about it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weights.speculation.draft_yield import expected_tokens
from weights.speculation.speculation_rule import (
    FIRST_GAP,
    LONGEST_TRIAL,
    MEMORY_PASSES,
    Acceptance,
    EngineStep,
    SpeculationReport,
    SpeculationRule,
    WhenSlower,
)

# Seconds of a step that decodes N requests, with speculation or without.
Cost = Callable[[int, bool], float]


class Engine:
    """Two tokens a request and step with speculation, one without; steps vary by a fifth."""

    def __init__(self, when_slower: WhenSlower, speedup: float, seed: int = 0) -> None:
        self.rule = SpeculationRule(when_slower)
        self.speedup = speedup
        self.rng = random.Random(seed)
        self.modes: list[bool] = []

    def run(self, steps: int, batch: int = 1, tells: bool = True) -> None:
        for _ in range(steps):
            on = self.rule.speculates(batch)
            settled = len(self.modes) > 1 and self.modes[-1] == self.modes[-2] == on
            self.modes.append(on)
            seconds = (0.02 * 2 / self.speedup if on else 0.02) * self.rng.uniform(0.8, 1.2)
            tokens = batch * (2 if on else 1)
            self.rule.add(EngineStep(batch, seconds, tokens, on if tells and settled else None))

    def report(self, batch: int = 1) -> SpeculationReport:
        return self.rule.report(batch)

    def share_on(self, latest: int) -> float:
        return sum(self.modes[-latest:]) / latest


def test_speculation_starts_enabled_with_an_unknown_speedup() -> None:
    rule = SpeculationRule("stop")
    assert rule.speculates(1)
    assert rule.report(1) == SpeculationReport(on=True, losing=False)


@pytest.mark.parametrize("speedup", [0.4, 0.8, 1.3, 3.0])
def test_the_speedup_is_estimated_despite_noise(speedup: float) -> None:
    engine = Engine("keep", speedup)
    engine.run(8000)
    assert engine.report().speedup == pytest.approx(speedup, rel=0.1)
    assert engine.report().losing == (speedup < 1)


def test_slower_speculation_is_switched_off() -> None:
    engine = Engine("stop", 0.6)
    engine.run(4000)
    assert not engine.report().on
    assert engine.share_on(2000) < 0.05


def test_speculation_that_must_stay_on_continues_and_is_reported_as_slower() -> None:
    engine = Engine("keep", 0.6)
    engine.run(4000)
    assert engine.report().on and engine.report().losing
    assert engine.share_on(2000) > 0.95


def test_faster_speculation_stays_on() -> None:
    engine = Engine("stop", 1.5)
    engine.run(4000)
    assert engine.report().on and not engine.report().losing
    assert engine.share_on(2000) > 0.95


def test_speculation_is_switched_on_again_once_it_is_faster() -> None:
    engine = Engine("stop", 0.6)
    engine.run(6000)
    assert not engine.report().on
    engine.speedup = 1.8
    engine.run(6000)
    assert engine.report().on
    assert engine.share_on(1000) > 0.9


def test_speculation_may_be_on_in_small_batches_and_off_in_large_ones() -> None:
    engine = Engine("stop", 1.5)
    for _ in range(40):
        engine.speedup = 1.5
        engine.run(100, batch=2)
        engine.speedup = 0.6
        engine.run(100, batch=40)
    assert engine.report(2).on and not engine.report(40).on
    assert engine.report(33).on == engine.report(64).on == engine.report(40).on


def test_speculation_that_makes_no_difference_stays_as_configured() -> None:
    engines = [Engine("stop", 1.0, seed) for seed in range(20)]
    for engine in engines:
        engine.run(4000)
    # at 95 %, looking often
    assert sum(engine.report().on for engine in engines) >= 15


def test_an_untried_size_gets_the_result_of_the_last_tried_one() -> None:
    engine = Engine("keep", 0.6)
    engine.run(4000, batch=4)
    assert engine.report(64).speedup == engine.report(4).speedup


def test_trials_without_measurements_are_abandoned() -> None:
    engine = Engine("stop", 0.6)
    engine.run(200)
    engine.run(3000, tells=False)
    assert engine.share_on(1000) > 1 - 1.5 * LONGEST_TRIAL / 1000


def test_speculation_is_tried_again_after_its_measurements_were_forgotten() -> None:
    engine = Engine("stop", 0.6)
    engine.run(4000)
    engine.rule.forget()
    assert engine.rule.speculates(1)
    engine.run(FIRST_GAP)
    assert engine.share_on(FIRST_GAP - 1) == 1


@given(
    st.sampled_from(["keep", "stop"]),
    st.lists(
        st.builds(
            EngineStep,
            batch=st.integers(1, 300),
            seconds=st.floats(0, 10),
            tokens=st.integers(0, 500),
            speculating=st.sampled_from([None, False, True]),
        ),
        max_size=400,
    ),
)
def test_any_sequence_of_steps_gives_a_valid_report(
    when_slower: WhenSlower, steps: list[EngineStep]
) -> None:
    rule = SpeculationRule(when_slower)
    for step in steps:
        rule.speculates(step.batch)
        rule.add(step)
        report = rule.report(step.batch)
        assert report.speedup is None or report.speedup > 0
        assert report.on or when_slower == "stop"


@settings(max_examples=settings().max_examples // 6)
@given(st.floats(0.2, 5), st.integers(1, 64), st.integers(0, 1000))
def test_trials_take_a_small_share_of_a_long_run(speedup: float, batch: int, seed: int) -> None:
    engine = Engine("keep", speedup, seed)
    engine.run(10_000, batch)
    near_one = 0.9 < speedup < 1.1  # tried more, and it costs nothing
    assert near_one or engine.share_on(10_000) > 0.95


def test_a_constant_acceptance_rate_is_recovered() -> None:
    rng, acceptance = random.Random(1), Acceptance()
    for _ in range(8000):
        accepted = 0
        while accepted < 4 and rng.random() < 0.7:
            accepted += 1
        acceptance.add([(4, accepted)])
    assert acceptance.rate == pytest.approx(0.7, abs=0.02)
    assert acceptance.expected_tokens_per_pass == pytest.approx(expected_tokens(0.7, 4), rel=0.03)
    assert acceptance.tokens_per_pass == pytest.approx(expected_tokens(0.7, 4), rel=0.03)


def test_drafts_that_are_all_accepted_or_all_rejected_yield_fewer_tokens_than_expected() -> None:
    acceptance = Acceptance()
    for accepted in (4, 0) * 100:
        acceptance.add([(4, accepted)])
    seen, expected = acceptance.tokens_per_pass, acceptance.expected_tokens_per_pass
    assert seen == pytest.approx(3, rel=1e-3) and expected is not None and expected > 3.2


def test_a_pass_without_a_draft_yields_one_token() -> None:
    acceptance = Acceptance()
    acceptance.add([(0, 0), (0, 0), (2, 2)])
    assert acceptance.rate == 1
    assert acceptance.tokens_per_pass == acceptance.expected_tokens_per_pass == pytest.approx(5 / 3)


def test_old_acceptance_of_drafts_is_forgotten() -> None:
    acceptance = Acceptance()
    for kept in (0, 3):
        for _ in range(5 * MEMORY_PASSES // 100):
            acceptance.add([(3, kept)] * 100)
    assert acceptance.rate == pytest.approx(1, abs=0.05)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20), max_size=20)
)
def test_the_figures_of_passes_stay_within_their_range(steps: list[list[tuple[int, int]]]) -> None:
    acceptance = Acceptance()
    for step in steps:
        acceptance.add((drafted, min(drafted, accepted)) for drafted, accepted in step)
    if acceptance.rate is not None:
        assert 0 <= acceptance.rate <= 1 + 1e-9
    for tokens in (acceptance.tokens_per_pass, acceptance.expected_tokens_per_pass):
        assert tokens is None or 1 - 1e-9 <= tokens <= 9 + 1e-9
