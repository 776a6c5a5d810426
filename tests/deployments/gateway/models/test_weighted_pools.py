"""Conversations are split by weight, alike in every gateway, and few move when weights change."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.models.weighted_pools import chosen

NAMES = [b"conversation %d" % number for number in range(10_000)]
weights_of_pools = st.dictionaries(
    st.text("abc-", min_size=1, max_size=4), st.floats(0.0, 1e6), min_size=1, max_size=5
).filter(lambda weights: any(weights.values()))


@pytest.mark.parametrize(
    "weights", [{"a": 95, "b": 5}, {"a": 1, "b": 1}, {"a": 50, "b": 30, "c": 20}, {"a": 1, "b": 0}]
)
def test_each_pool_gets_its_share_of_conversations_within_one_percent(
    weights: Mapping[str, float],
) -> None:
    counts = Counter(chosen(weights, name) for name in NAMES)
    shares = {name: counts[name] / len(NAMES) for name in weights}
    total = sum(weights.values())
    expected = {name: weight / total for name, weight in weights.items()}
    assert shares == pytest.approx(expected, abs=0.01)


@given(weights_of_pools, st.binary(max_size=40))
def test_a_pool_with_a_weight_is_chosen_in_any_order_of_the_pools(
    weights: dict[str, float], name: bytes
) -> None:
    found = chosen(weights, name)
    assert weights[found] > 0
    assert chosen(dict(reversed(weights.items())), name) == found


@given(weights_of_pools, st.floats(1.0, 10.0))
def test_scaling_all_weights_by_a_factor_changes_nothing(
    weights: dict[str, float], by: float
) -> None:
    tiny = min(weight for weight in weights.values() if weight) < 1e-200
    more = {name: weight * by for name, weight in weights.items()}
    if not tiny:  # otherwise numbers have too few digits
        assert all(chosen(weights, name) == chosen(more, name) for name in NAMES[:20])


def test_a_larger_weight_moves_conversations_only_to_its_pool() -> None:
    before = [chosen({"base": 95, "canary": 5}, name) for name in NAMES]
    after = [chosen({"base": 95, "canary": 20}, name) for name in NAMES]
    moves = Counter((one, other) for one, other in zip(before, after, strict=True) if one != other)
    assert set(moves) == {("base", "canary")}
