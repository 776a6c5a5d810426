"""The ranking's laws."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from router.cost import predict_ttft
from router.load import ReplicaLoad
from router.placement import place
from tests.router.loads import any_loads, load, tokens

seeds = st.integers(0, 2**32).map(random.Random)


@given(any_loads, tokens, seeds)
def test_every_replica_is_ranked_once(
    loads: dict[str, ReplicaLoad], prompt: int, rng: random.Random
) -> None:
    assert sorted(place(loads, prompt, rng).replica_ids) == sorted(loads)


@given(any_loads, tokens, seeds)
def test_the_soonest_first_token_comes_first(
    loads: dict[str, ReplicaLoad], prompt: int, rng: random.Random
) -> None:
    predicted = [candidate.predicted_ttft for candidate in place(loads, prompt, rng).ranked]
    assert predicted == sorted(predicted)


@given(any_loads, tokens, seeds)
def test_a_candidate_is_what_its_load_says(
    loads: dict[str, ReplicaLoad], prompt: int, rng: random.Random
) -> None:
    for candidate in place(loads, prompt, rng).ranked:
        of = loads[candidate.replica_id]
        assert candidate.url == of.url
        assert candidate.predicted_ttft == predict_ttft(of, prompt)


@given(st.permutations([(0, 0), (1, 0), (0, 2), (3, 3)]), seeds)
def test_between_equal_predictions_fewer_requests_win(
    queues: list[tuple[int, int]], rng: random.Random
) -> None:
    loads = {f"{w}+{r}": load(f"{w}+{r}", waiting=w, running=r) for w, r in queues}
    assert place(loads, 100, rng).replica_ids == ("0+0", "1+0", "0+2", "3+3")


def test_ties_are_broken_fairly() -> None:
    rng = random.Random(1)
    loads = {replica_id: load(replica_id) for replica_id in "abcd"}
    first = Counter(place(loads, 100, rng).replica_ids[0] for _ in range(4000))
    assert first.keys() == loads.keys()
    assert all(900 < count < 1100 for count in first.values())


def test_a_dead_replica_is_never_chosen() -> None:
    loads = {replica_id: load(replica_id) for replica_id in "ab"}
    del loads["a"]
    assert place(loads, 100, random.Random(1)).replica_ids == ("b",)


def test_without_loads_the_placement_is_empty() -> None:
    placement = place({}, 100, random.Random(1))
    assert not placement.ranked
    assert not placement.replica_ids
