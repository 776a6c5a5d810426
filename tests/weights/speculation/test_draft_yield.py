"""The yield of speculation, its inverse, and what is recommended."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from weights.speculation.draft_yield import (
    MOST_ROUNDS,
    SpeculationCandidate,
    acceptance_of,
    expected_tokens,
    ratio_interval,
    recommend,
)

ACCEPTANCE = st.floats(0, 1)
DRAFTED = st.integers(1, 16)


@pytest.mark.parametrize(
    ("acceptance", "drafted", "tokens"),
    [(0.0, 4, 1.0), (1.0, 4, 5.0), (0.5, 1, 1.5), (0.5, 3, 1.875), (0.8, 5, 3.68928)],
)
def test_a_pass_yields_the_tokens_of_the_published_formula(
    acceptance: float, drafted: int, tokens: float
) -> None:
    assert expected_tokens(acceptance, drafted) == pytest.approx(tokens)


@given(st.floats(0, 0.999), DRAFTED)
def test_the_yield_matches_the_closed_formula(acceptance: float, drafted: int) -> None:
    closed = (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
    assert expected_tokens(acceptance, drafted) == pytest.approx(closed)


@given(ACCEPTANCE, DRAFTED)
def test_a_longer_draft_never_yields_less(acceptance: float, drafted: int) -> None:
    tokens = expected_tokens(acceptance, drafted)
    assert 1 <= tokens <= drafted + 1
    assert tokens <= expected_tokens(acceptance, drafted + 1)


@given(ACCEPTANCE, DRAFTED)
def test_the_acceptance_rate_is_recovered_from_the_yield(acceptance: float, drafted: int) -> None:
    found = acceptance_of(expected_tokens(acceptance, drafted), drafted)
    assert found == pytest.approx(acceptance, abs=1e-9)


def test_more_tokens_than_a_pass_can_yield_are_an_acceptance_of_one() -> None:
    assert acceptance_of(9.0, 4) == 1.0
    assert acceptance_of(0.5, 4) == 0.0
    assert acceptance_of(1.0, 0) == 0.0


def test_the_interval_uses_students_t() -> None:
    # the logarithms 0 and log 4: mean log 2, standard error log 2, t of one degree 12.706
    interval = ratio_interval([1.0, 4.0])
    assert interval.mean == pytest.approx(2.0)
    assert interval.low == pytest.approx(2.0 ** (1 - 12.706))
    assert interval.high == pytest.approx(2.0 ** (1 + 12.706))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=MOST_ROUNDS))
def test_the_inverse_of_ratios_has_the_inverse_interval(ratios: list[float]) -> None:
    there, back = ratio_interval(ratios), ratio_interval([1 / ratio for ratio in ratios])
    assert there.low <= there.mean * 1.000001
    assert there.mean == pytest.approx(1 / back.mean)
    assert there.low == pytest.approx(1 / back.high)


FAST = SpeculationCandidate("n-gram, 4", 4, (1.50, 1.52, 1.48))
FASTER_PERHAPS = SpeculationCandidate("n-gram, 8", 8, (1.2, 3.0, 1.1))
SLOW = SpeculationCandidate("draft, 3", 3, (0.60, 0.61, 0.59))
EVEN = SpeculationCandidate("suffix, 8", 8, (1.01, 0.99, 1.02))


def test_the_setting_that_is_significantly_fastest_is_recommended() -> None:
    found = recommend([SLOW, FASTER_PERHAPS, FAST])
    assert found.best == FAST
    assert "1.50 times" in found.reason


def test_nothing_is_recommended_if_every_setting_is_slower() -> None:
    found = recommend([SLOW])
    assert found.best is None
    assert "draft, 3" in found.reason


def test_a_speedup_that_may_be_noise_is_not_recommended() -> None:
    found = recommend([EVEN, SLOW])
    assert found.best is None
    assert "suffix, 8" in found.reason


def test_drafting_nothing_is_never_the_recommendation() -> None:
    assert recommend([SpeculationCandidate("off", 0, (2.0, 2.01))]).best is None


@given(st.lists(st.lists(st.floats(0.2, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_every_recommended_setting_was_faster_on_average(rounds: list[list[float]]) -> None:
    assume(all(len(set(one)) > 1 for one in rounds))
    candidates = [
        SpeculationCandidate(str(k), k, tuple(one)) for k, one in enumerate(rounds, start=1)
    ]
    best = recommend(candidates).best
    assert best is None or best.speedup.mean > 1
