"""How well a figure separates two groups."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def auc(of_these: Sequence[float], of_others: Sequence[float]) -> float:
    """The area under the ROC curve: how often a figure of these is above one of the others.

    A tie counts half. 1 or 0 separates them, 0.5 does not.
    """
    others = sorted(of_others)
    above = sum(bisect_left(others, one) + bisect_right(others, one) for one in of_these)
    return above / (2 * len(of_these) * len(others))
