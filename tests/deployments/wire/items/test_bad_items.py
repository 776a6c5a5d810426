"""A request with any number of bad items costs as much as one with one."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from deployments.wire.items.completed import completed
from deployments.wire.items.forms import ItemFault
from deployments.wire.items.kinds import first_fault
from tests.deployments.wire.items.bad_items import LISTS, At, Counted

CASES = [(place, bad) for place in LISTS for bad in place.bad]
NAMES = [f"{place.path} {place.field} {index}" for index, (place, _) in enumerate(CASES)]
# a fault, and the frames of those who look
MOST_BYTES = 16_384


def looked_at(place: At, items: list[Any]) -> tuple[ItemFault | None, int, int]:
    """Return the fault, how many items were taken, and the bytes that it took at most."""
    Counted.taken = 0
    fields = place.among(Counted(items))
    tracemalloc.start()
    try:
        fault = first_fault(place.path, fields)
        return fault, Counted.taken, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [1_000, 100_000])
@pytest.mark.parametrize(("place", "bad"), CASES, ids=NAMES)
def test_many_invalid_items_are_one_fault_after_one_pass(place: At, bad: Any, number: int) -> None:
    fault, taken, most = looked_at(place, [bad] * number)
    assert fault is not None
    assert fault.field == place.field
    assert "[0]" in fault.message or ".choice[0]" in fault.message
    assert taken == 1
    assert most < MOST_BYTES


@pytest.mark.parametrize(("place", "bad"), CASES, ids=NAMES)
def test_a_bad_item_behind_good_ones_is_found_by_its_index(place: At, bad: Any) -> None:
    fault, taken, most = looked_at(place, [*[place.good] * 50, *[bad] * 1_000])
    assert fault is not None
    assert "[50]" in fault.message
    assert taken == 51
    assert most < MOST_BYTES


@pytest.mark.parametrize("place", LISTS, ids=[f"{of.path} {of.field}" for of in LISTS])
def test_valid_items_pass_unchanged_or_completed(place: At) -> None:
    fields = place.among([place.good] * 3)
    assert first_fault(place.path, fields) is None
    assert first_fault(place.path, completed(place.path, fields)) is None
