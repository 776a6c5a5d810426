"""The yield of speculative decoding: tokens per pass of the model, and the draft that pays.

A draft proposes k tokens. The model checks them in one pass, keeps those up to the first wrong one,
and adds a token itself. Assume that each draft token is right with the same probability a,
independent of the others. A pass then yields (1 - a^(k+1)) / (1 - a) tokens. Source: Leviathan,
Kalman and Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, equation 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, stdev

# Two-sided 95% points of Student's t with 1, 2, ... degrees of freedom: of 2 to 20 rounds.
_STUDENT_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
MOST_ROUNDS = len(_STUDENT_T) + 1
_BISECTIONS = 60


def expected_tokens(acceptance: float, drafted: int) -> float:
    """Return the mean tokens per pass, 1 to `drafted` + 1.

    `acceptance` is the probability, 0 to 1, that a draft token is right if those before it were.
    """
    return sum(acceptance**guess for guess in range(drafted + 1))


def acceptance_of(tokens_per_pass: float, drafted: int) -> float:
    """Return the acceptance, 0 to 1, at which a pass yields this many tokens: the inverse of
    `expected_tokens`.

    A yield that no acceptance gives is treated as the nearest possible one; 0 if nothing is
    drafted.
    """
    if drafted == 0 or tokens_per_pass <= 1:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if expected_tokens(middle, drafted) < tokens_per_pass:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class Interval:
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float


def ratio_interval(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of 2 to `MOST_ROUNDS` ratios above 0, by Student's t on their
    logarithms: a ratio and its inverse are equally far from 1."""
    logs = [log(ratio) for ratio in ratios]
    middle = fmean(logs)
    reach = _STUDENT_T[len(logs) - 2] * stdev(logs) / sqrt(len(logs))
    return Interval(exp(middle), exp(middle - reach), exp(middle + reach))


@dataclass(frozen=True)
class SpeculationCandidate:
    """A way to speculate, and its tokens per second over those without, by round."""

    name: str
    drafted: int
    speedups: tuple[float, ...]

    @property
    def speedup(self) -> Interval:
        return ratio_interval(self.speedups)


@dataclass(frozen=True)
class Recommendation:
    """A recommendation. `best` is None if speculation is not worth it."""

    best: SpeculationCandidate | None
    reason: str


def recommend(measured: Sequence[SpeculationCandidate]) -> Recommendation:
    """Return the candidate with the largest certain speedup: by the lower end of its interval,
    which must be above 1.

    A candidate without drafts does not count.
    """
    drafting = [candidate for candidate in measured if candidate.drafted > 0]
    if not drafting:
        return Recommendation(None, "no configuration was tried")
    best = max(drafting, key=lambda candidate: candidate.speedup.low)
    speedup = best.speedup
    if speedup.low > 1:
        words = f"{best.name} is {speedup.mean:.2f} times the speed without speculation"
        return Recommendation(best, f"{words} ({speedup.low:.2f} to {speedup.high:.2f})")
    nearest = max(drafting, key=lambda candidate: candidate.speedup.mean)
    speedup = nearest.speedup
    words = (
        "no configuration was significantly faster than no speculation; the best was "
        f"{nearest.name}"
    )
    reach = f"{speedup.mean:.2f} times as fast ({speedup.low:.2f} to {speedup.high:.2f})"
    return Recommendation(None, f"{words}, {reach}")
