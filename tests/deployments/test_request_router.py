"""The order in which Ray Serve tries replicas; `tests/on_serve/test_routing.py` has Ray Serve."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.request_router import _grouped


def replica(replica_id: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=replica_id))


def ids(groups: list[list[Any]]) -> list[list[str]]:
    return [[of.replica_id.unique_id for of in group] for group in groups]


@pytest.mark.parametrize(
    ("ranked", "expected"),
    [
        (("b", "a"), [["b"], ["a"]]),
        (("dead", "b", "a"), [["b"], ["a"]]),
        (("b", "b", "a"), [["b"], ["a"]]),
    ],
)
def test_ranked_replicas_are_tried_one_by_one(
    ranked: tuple[str, ...], expected: list[list[str]]
) -> None:
    groups = ids(_grouped([replica("a"), replica("b")], ranked))
    assert [group for group in groups if group] == expected


@given(st.sets(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdefgh"), max_size=8))
def test_every_live_replica_is_in_exactly_one_group_and_dead_ones_in_none(
    live: set[str], ranked: list[str]
) -> None:
    groups = ids(_grouped([replica(of) for of in live], tuple(ranked)))
    assert sorted(of for group in groups for of in group) == sorted(live)


def test_without_ranks_two_random_replicas_come_first() -> None:
    firsts = set()
    for _ in range(300):
        first, rest = ids(_grouped([replica(of) for of in "abcd"], ()))
        assert (len(first), len(rest)) == (2, 2)
        firsts.add(frozenset(first))
    assert len(firsts) == 6
