"""Divergences, intervals and agreement, against values worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import Problem
from weights.evaluate.statistics import (
    common_prefix,
    compared,
    mean_over,
    perplexity,
    perplexity_ratio,
    ratio_of_rounds,
)

Array = np.ndarray[Any, np.dtype[Any]]
LN = math.log
GROUPS = st.lists(st.lists(st.floats(-20, 0), min_size=1, max_size=8), min_size=1, max_size=6)


def rows(*distributions: list[float]) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.array(distributions, np.float32))


@st.composite
def two_models(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """Log-probabilities of two models, [tokens, vocabulary], and the tokens that came."""
    tokens, vocabulary = draw(st.integers(1, 70)), draw(st.integers(2, 40))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = chance.normal(0, draw(st.floats(0.01, 8)), (2, tokens, vocabulary))
    logprobs = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(np.float32)
    return logprobs[0], logprobs[1], chance.integers(0, vocabulary, tokens)


def test_the_divergence_is_that_of_the_definition() -> None:
    found = compared(rows([0.5, 0.5]), rows([0.25, 0.75]), np.array([1]))
    assert found.kl[0] == pytest.approx(0.5 * LN(2) + 0.5 * LN(2 / 3), abs=1e-6)
    assert found.reference[0] == pytest.approx(LN(0.5), abs=1e-6)
    assert found.candidate[0] == pytest.approx(LN(0.75), abs=1e-6)


def test_the_likeliest_tokens_are_compared() -> None:
    reference = rows([0.6, 0.4], [0.6, 0.4])
    found = compared(reference, rows([0.9, 0.1], [0.1, 0.9]), np.array([0, 0]))
    assert found.agree == [True, False]


def test_tokens_that_float16_storage_makes_equal_are_compared_by_exact_values() -> None:
    exact = rows([0.33330, 0.33340, 0.33330])
    stored = exact.astype(np.float16)
    assert len(set(stored[0].tolist())) == 1
    likeliest = exact.argmax(axis=-1)
    assert compared(stored, exact, np.array([0]), likeliest).agree == [True]


def test_tokens_with_zero_reference_probability_add_nothing() -> None:
    found = compared(rows([1.0, 0.0]), rows([0.5, 0.5]), np.array([0]))
    assert found.kl[0] == pytest.approx(LN(2), abs=1e-6)


@pytest.mark.parametrize("ruined", [[1.0, 0.0], [float("nan"), 0.5]])
def test_a_candidate_without_a_probability_for_a_token_is_an_error(ruined: list[float]) -> None:
    with pytest.raises(Problem, match="of 1 tokens, 1 have probabilities that are 0 or no"):
        compared(rows([0.5, 0.5]), rows(ruined), np.array([1]))


@given(two_models())
def test_a_divergence_is_never_negative(models: tuple[Array, Array, Array]) -> None:
    reference, candidate, targets = models
    found = compared(reference.astype(np.float16), candidate, targets)
    assert min(found.kl) >= 0
    assert 0 <= sum(found.agree) <= len(targets)


@given(two_models())
def test_a_model_has_no_divergence_from_itself(models: tuple[Array, Array, Array]) -> None:
    logprobs, _, targets = models
    found = compared(logprobs, logprobs, targets)
    assert max(found.kl) < 1e-6
    assert all(found.agree)


@given(two_models())
def test_storage_in_float16_changes_a_divergence_within_its_bound(
    models: tuple[Array, Array, Array],
) -> None:
    reference, candidate, targets = models
    exact = compared(reference, candidate, targets)
    stored = compared(reference.astype(np.float16), candidate, targets)
    # each log-probability moves by at most 2^-11 of itself, and every term with it
    p, moved = np.exp(reference), np.abs(reference) * 2.0**-11
    terms = np.abs(reference - candidate) + 1
    bound = 3 * (p * moved * terms).sum(-1) + 3 * np.array(exact.kl) * (p * moved).sum(-1)
    assert np.all(np.abs(np.subtract(exact.kl, stored.kl)) <= bound + 1e-5)


def test_a_model_stored_in_float16_has_no_divergence_from_itself() -> None:
    logits = np.random.default_rng(1).normal(0, 4, (200, 5000)).astype(np.float32)
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = compared(logprobs.astype(np.float16), logprobs, np.zeros(200, int))
    assert np.mean(found.kl) < 1e-5


def test_the_perplexity_of_equally_likely_tokens_is_their_number() -> None:
    found = perplexity([[LN(0.25)] * 3, [LN(0.25)] * 5])
    assert found.value == pytest.approx(4)
    assert found.low == pytest.approx(4)
    assert found.high == pytest.approx(4)


def test_a_mean_is_over_tokens_not_over_windows() -> None:
    assert mean_over([[1.0, 1.0, 1.0], [5.0]]).value == pytest.approx(2)


@given(GROUPS)
def test_a_figure_lies_within_the_range_of_what_was_measured(groups: list[list[float]]) -> None:
    everything = [x for group in groups for x in group]
    found = mean_over(groups)
    assert min(everything) - 1e-9 <= found.low <= found.high <= max(everything) + 1e-9


@given(GROUPS)
def test_the_same_numbers_give_the_same_interval(groups: list[list[float]]) -> None:
    assert mean_over(groups) == mean_over(groups)


def test_more_windows_make_an_interval_narrower() -> None:
    chance = np.random.default_rng(3)
    few, many = (mean_over(chance.normal(0, 1, (n, 10)).tolist()) for n in (10, 1000))
    assert many.high - many.low < (few.high - few.low) / 4
    assert many.low < 0 < many.high


def test_the_difficulty_of_a_text_does_not_widen_the_ratio() -> None:
    reference = [[-1.0], [-9.0], [-4.0], [-2.0]]
    candidate = [[x - LN(1.1) for x in window] for window in reference]
    found = perplexity_ratio(candidate, reference)
    assert (found.low, found.value, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_rates_are_compared_round_by_round() -> None:
    found = ratio_of_rounds([20.0, 2.0], [10.0, 1.0])
    assert (found.low, found.value, found.high) == pytest.approx((2, 2, 2))


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 4], 1.0),
        ([1, 2, 3, 4], [1, 2, 9, 4], 0.5),
        ([1, 2], [1, 2, 3, 4], 0.5),
        ([], [1], 0.0),
        ([], [], 1.0),
    ],
)
def test_a_common_prefix_is_a_fraction_of_the_longer_answer(
    one: list[int], other: list[int], share: float
) -> None:
    assert common_prefix(one, other) == share
