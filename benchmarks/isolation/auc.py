"""How well a figure tells two kinds of things apart."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def auc(of_these: Sequence[float], of_others: Sequence[float]) -> float:
    """How often a figure of these is above one of the others, a tie counting half.

    1 or 0 tells them apart, 0.5 tells nothing: the area under the ROC curve.
    """
    others = sorted(of_others)
    above = sum(bisect_left(others, one) + bisect_right(others, one) for one in of_these)
    return above / (2 * len(of_these) * len(others))
