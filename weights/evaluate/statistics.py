"""Differences of two models' next-token distributions, per token and in the mean. Pure numpy.

Logarithms are natural: divergences and log-probabilities are in nats. The reference's
log-probabilities may have been stored as float16, whose relative error is at most 2^-11. Its
distributions are normalized again, so that no divergence is negative. With one model on both sides
the mean divergence then stays below 1e-5 nats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import Problem
from weights.evaluate.estimate import Estimate

Array = np.ndarray[Any, np.dtype[Any]]

# Rows of a vocabulary's length in memory at once, in float32.
ROWS = 64
RESAMPLES = 2000
SEED = 7


@dataclass(frozen=True)
class TokenFigures:
    """One entry per token: the divergence KL(reference || candidate) of its distributions, whether
    both have the same likeliest token, and its log-probability by each.
    """

    kl: list[float]
    agree: list[bool]
    reference: list[float]
    candidate: list[float]

    def since(self, first: int) -> TokenFigures:
        """Return those of the tokens from `first` on."""
        return TokenFigures(
            self.kl[first:], self.agree[first:], self.reference[first:], self.candidate[first:]
        )


def compared(
    reference: Array, candidate: Array, targets: Array, likeliest: Array | None = None
) -> TokenFigures:
    """Compare the models on tokens.

    `reference` and `candidate`: log-probabilities, [tokens, vocabulary]; `targets`: [tokens], the
    actual tokens; `likeliest`: [tokens], the reference's likeliest, because float16 makes nearly
    equal log-probabilities equal.

    A token that the reference rules out adds nothing to the divergence. Raises Problem if a figure
    is infinite or not a number: weights that overflow, or that rule out likely tokens of the
    reference, have no meaningful mean.
    """
    if reference.shape != candidate.shape or len(reference) != len(targets):
        raise ValueError(
            f"shapes differ: {reference.shape}, {candidate.shape}, {len(targets)} targets"
        )
    if likeliest is None:
        likeliest = np.argmax(reference, axis=-1)
    figures = TokenFigures([], [], [], [])
    for begin in range(0, len(targets), ROWS):
        p_log = _normalized(np.asarray(reference[begin : begin + ROWS], np.float32))
        q_log = np.asarray(candidate[begin : begin + ROWS], np.float32)
        chosen = np.arange(len(p_log)), targets[begin : begin + ROWS]
        p = np.exp(p_log)
        with np.errstate(invalid="ignore"):
            terms = np.where(p > 0, p * (p_log - q_log), 0.0)
        # rounding can make the sum of two equal distributions negative
        figures.kl.extend(np.maximum(terms.sum(axis=-1, dtype=np.float64), 0.0).tolist())
        agree = likeliest[begin : begin + ROWS] == q_log.argmax(axis=-1)
        figures.agree.extend(agree.tolist())
        figures.reference.extend(p_log[chosen].tolist())
        figures.candidate.extend(q_log[chosen].tolist())
    finite: Array = np.isfinite([figures.kl, figures.reference, figures.candidate])
    lost = len(targets) - int(finite.all(axis=0).sum())
    if lost:
        raise Problem(
            f"of {len(targets)} tokens, {lost} have probabilities that are 0 or not a number",
            "the weights are damaged or overflow in this dtype; try --engine-arg dtype=bfloat16",
        )
    return figures


def _normalized(logprobs: Array) -> Array:
    top = logprobs.max(axis=-1, keepdims=True)
    total = np.exp(logprobs - top).sum(axis=-1, keepdims=True, dtype=np.float64)
    return np.asarray(logprobs - (top + np.log(total)).astype(np.float32))


def mean_over(groups: Sequence[Sequence[float]]) -> Estimate:
    """Return the mean of all numbers. Its interval is from resampling whole groups, whose members
    depend on one another: a window's tokens, or a round's.
    """
    sums, counts = _sums(groups)
    means = _resampled(sums, counts)
    return _estimate(sums.sum() / counts.sum(), means)


def perplexity(logprobs: Sequence[Sequence[float]]) -> Estimate:
    """Return exp of the mean negative log-probability; groups as in `mean_over`."""
    sums, counts = _sums(logprobs)
    return _estimate(np.exp(-sums.sum() / counts.sum()), np.exp(-_resampled(sums, counts)))


def perplexity_ratio(
    candidate: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]
) -> Estimate:
    """Return the candidate's perplexity over the reference's, on the same tokens: paired, so that
    hard texts do not widen the interval.
    """
    differences = [np.subtract(r, c).tolist() for c, r in zip(candidate, reference, strict=True)]
    mean = mean_over(differences)
    return Estimate(*(float(np.exp(x)) for x in (mean.value, mean.low, mean.high)))


def ratio_of_rounds(candidate: Sequence[float], reference: Sequence[float]) -> Estimate:
    """Return the candidate's rate over the reference's, measured in turns: the geometric mean of
    the rounds' ratios.
    """
    logs = np.log(np.asarray(candidate) / np.asarray(reference))
    mean = mean_over([[float(x)] for x in logs])
    return Estimate(*(float(np.exp(x)) for x in (mean.value, mean.low, mean.high)))


def common_prefix(one: Sequence[int], other: Sequence[int]) -> float:
    """Return the common share at the start of two answers, of the longer one: 1 for equal ones."""
    longest = max(len(one), len(other))
    if longest == 0:
        return 1.0
    same = next(
        (i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    return same / longest


def _sums(groups: Sequence[Sequence[float]]) -> tuple[Array, Array]:
    filled = [group for group in groups if len(group)]
    if not filled:
        raise ValueError("nothing was measured")
    sums = np.array([np.sum(group, dtype=np.float64) for group in filled])
    return sums, np.array([len(group) for group in filled], dtype=np.float64)


def _resampled(sums: Array, counts: Array) -> Array:
    """Return means over groups drawn with replacement, [RESAMPLES]."""
    drawn = np.random.default_rng(SEED).integers(0, len(sums), (RESAMPLES, len(sums)))
    return np.asarray(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))


def _estimate(value: float, resampled: Array) -> Estimate:
    low, high = np.percentile(resampled, [2.5, 97.5])
    return Estimate(float(value), float(low), float(high))
