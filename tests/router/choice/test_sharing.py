"""How engines of one node slow each other down: learned, bounded, and nothing where they do not."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.cost import TtftCorrection
from router.choice.sharing import MAX_LOG, NodeSharing, at_work_on_nodes, working_on_nodes
from tests.router.loads import load


def observed(sharing: NodeSharing, working: int, takes: float, times: int = 200) -> None:
    """First tokens that take this factor times the time without any factor."""
    for _ in range(times):
        sharing.observe(working, takes / sharing.factor(working))


def test_a_sharing_factor_is_learned_for_each_number_of_working_engines() -> None:
    sharing = NodeSharing()
    for working, takes in ((1, 1.0), (2, 1.5), (4, 3.0)):
        observed(sharing, working, takes)
    assert [sharing.factor(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.5, 3.0], rel=0.01)
    # a number that was not seen yet is as the nearest that was
    assert sharing.factor(7) == sharing.factor(4)
    assert NodeSharing().factor(3) == 1.0
    observed(sharing, 0, 5.0, times=3)
    assert sharing.factor(0) == 1.0  # it has the node to itself


def test_one_outlier_moves_a_factor_little() -> None:
    sharing = NodeSharing()
    observed(sharing, 2, 1.5)
    sharing.observe(2, 1000.0)
    assert sharing.factor(2) == pytest.approx(1.5, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 100), st.floats(1e-6, 1e6)), max_size=200))
def test_a_factor_is_bounded_for_any_observations(seen: list[tuple[int, float]]) -> None:
    sharing = NodeSharing()
    for working, times in seen:
        sharing.observe(working, times)
    for working in (1, 2, 64, 1000):
        assert math.exp(-MAX_LOG) <= sharing.factor(working) <= math.exp(MAX_LOG)


def test_engines_that_work_are_counted_by_node() -> None:
    loads = {
        of.replica_id: of
        for of in (
            load("a", node_ip="10.0.0.1", running=1, waiting=0),
            load("b", node_ip="10.0.0.1", running=0, waiting=2),
            load("c", node_ip="10.0.0.1", running=0, waiting=0),
            load("d", node_ip="10.0.0.2", running=0, waiting=0),
            load("e", node_ip="", running=1, waiting=0),
            load("f", node_ip="", running=1, waiting=0),
        )
    }
    assert working_on_nodes(loads) == [2, 2, 3, 0, 0, 0]


def test_working_engines_are_grouped_by_node_where_they_share_its_cores() -> None:
    one, other = {"node_ip": "10.0.0.1"}, {"node_ip": "10.0.0.2"}
    loads = {
        of.replica_id: of
        for of in (
            load("a", **one, engines_at_once=2, running=1),
            load("b", **one, engines_at_once=2, waiting=1),
            load("c", **one, engines_at_once=2),
            load("d", **other, running=1),
            load("e", node_ip="", engines_at_once=2, running=1),
        )
    }
    assert at_work_on_nodes(loads) == {"10.0.0.1": [loads["a"], loads["b"]]}


@pytest.mark.parametrize(("slows", "most"), [(1.0, 0.06), (0.4, 0.06)])
def test_a_correction_learns_the_line_and_the_sharing_together(slows: float, most: float) -> None:
    """With `slows` 1 each other working engine costs the same time again; 0: nothing."""
    rng, correction, errors = random.Random(1), TtftCorrection(), []
    for number in range(600):
        raw, working = rng.uniform(0.05, 2.0), rng.randint(1, 4)
        took = (0.8 * raw + 0.02) * (1 + slows * (working - 1)) * rng.uniform(0.95, 1.05)
        if number > 300:
            errors.append(abs(correction.apply(raw, working) - took) / took)
        correction.observe(raw, took, working)
    assert sum(errors) / len(errors) < most
    assert correction.error is not None and correction.error < most


def test_predictions_are_unchanged_for_engines_that_do_not_share_cores() -> None:
    rng, with_it, without = random.Random(2), TtftCorrection(), TtftCorrection()
    for _ in range(600):
        raw, working = rng.uniform(0.05, 2.0), rng.randint(1, 8)
        took = (0.8 * raw + 0.02) * rng.uniform(0.9, 1.1)
        with_it.observe(raw, took, working)
        without.observe(raw, took)
    factors = [with_it.sharing.factor(n) / with_it.sharing.factor(1) for n in range(1, 9)]
    assert factors == pytest.approx([1.0] * 8, rel=0.05)
    assert with_it.error is not None and without.error is not None
    assert with_it.error < without.error + 0.01
