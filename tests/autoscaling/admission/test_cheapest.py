"""The cheapest pool that meets the SLO serves a request, otherwise the one that is soonest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.cheapest import PoolOffer, cheapest

OFFERS = st.builds(
    PoolOffer,
    pool=st.just("pool"),
    predicted_ttft_s=st.none() | st.floats(0, 100),
    holds_slo=st.booleans(),
    price=st.floats(0, 100),
)


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([("a", 2.0, True, 1.0), ("b", 1.0, True, 2.0)], (0, "price")),
        ([("a", 9.0, False, 1.0), ("b", 1.0, True, 2.0)], (1, "price")),
        ([("a", 9.0, False, 1.0), ("b", 8.0, False, 2.0)], (1, "soonest")),
        # of one price, the soonest
        ([("a", 2.0, True, 1.0), ("b", 1.0, True, 1.0)], (1, "price")),
        # no replica is known
        ([("a", None, True, 1.0), ("b", 1.0, False, 2.0)], (1, "soonest")),
        ([("a", None, False, 1.0), ("b", None, False, 2.0)], (None, "soonest")),
    ],
)
def test_the_cheapest_pool_that_meets_the_slo_is_chosen(
    offers: list[tuple[str, float | None, bool, float]], chosen: tuple[int | None, str]
) -> None:
    assert cheapest([PoolOffer(*offer) for offer in offers]) == chosen


@given(st.lists(OFFERS, min_size=1, max_size=5))
def test_no_cheaper_pool_meets_the_slo_and_otherwise_none_is_faster(
    offers: list[PoolOffer],
) -> None:
    index, reason = cheapest(offers)
    known = [of for of in offers if of.predicted_ttft_s is not None]
    assert (index is None) == (not known)
    if index is None:
        return
    holding = [of for of in known if of.holds_slo]
    assert (reason == "price") == bool(holding)
    if holding:
        assert offers[index] in holding
        assert offers[index].price == min(of.price for of in holding)
    else:
        assert offers[index].predicted_ttft_s == min(of.predicted_ttft_s or 0.0 for of in known)
