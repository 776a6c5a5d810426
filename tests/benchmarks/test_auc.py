"""The area under the ROC curve, by counting pairs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.isolation.run import auc

figures = st.lists(st.integers(0, 5).map(float), min_size=1, max_size=8)


@given(figures, figures)
def test_the_auc_is_the_share_of_ordered_pairs(one: list[float], other: list[float]) -> None:
    pairs = [(a > b) + (a == b) / 2 for a in one for b in other]
    assert auc(one, other) == pytest.approx(sum(pairs) / len(pairs))


def test_the_auc_of_separated_values_is_one() -> None:
    assert auc([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert auc([1.0, 2.0], [3.0, 4.0]) == 0.0
    assert auc([1.0], [1.0, 1.0]) == 0.5
