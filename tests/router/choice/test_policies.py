"""The policies: what all of them promise, and what each does."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.policies import (
    POLICIES,
    POLICY_NAMES,
    Candidate,
    PlacementRequest,
    gathered,
    make_policy,
)
from tests.router.candidates import any_candidates, candidate, identical_candidates, ids

KEY = b"sixteen bytes ok"
REQUEST = PlacementRequest(1000, (KEY,))
rngs = st.integers(0, 2**32).map(random.Random)
every_policy = pytest.mark.parametrize("name", POLICY_NAMES)
requests = st.builds(
    PlacementRequest,
    st.integers(0, 10**6),
    st.lists(st.binary(min_size=16, max_size=16), max_size=3).map(tuple),
    st.none() | st.text(),
    st.booleans(),
)


def ranked(
    name: str, candidates: list[Candidate], seed: int = 1, request: PlacementRequest = REQUEST
) -> list[str]:
    return ids(make_policy(name).rank(request, candidates, random.Random(seed)))


def firsts(
    name: str, candidates: list[Candidate], times: int = 2000, request: PlacementRequest = REQUEST
) -> Counter[str]:
    policy, rng = make_policy(name), random.Random(1)
    return Counter(policy.rank(request, candidates, rng)[0].replica_id for _ in range(times))


@given(requests, any_candidates, rngs, st.sampled_from(POLICY_NAMES))
def test_every_policy_ranks_every_candidate_once(
    request: PlacementRequest, candidates: list[Candidate], rng: random.Random, name: str
) -> None:
    policy = make_policy(name)
    for _ in range(2):
        assert sorted(ids(policy.rank(request, candidates, rng))) == ids(candidates)


@every_policy
def test_every_policy_breaks_ties_fairly(name: str) -> None:
    counts = firsts(name, identical_candidates(4))
    assert len(counts) == 4
    assert all(400 < count < 600 for count in counts.values())


@every_policy
def test_every_policy_ranks_no_candidates_as_none(name: str) -> None:
    assert ranked(name, []) == []


@every_policy
def test_a_dead_replica_is_never_chosen(name: str) -> None:
    policy, rng = make_policy(name), random.Random(1)
    policy.rank(REQUEST, identical_candidates(4), rng)
    living = [of for of in identical_candidates(4) if of.replica_id != "r2"]
    assert all("r2" not in ids(policy.rank(REQUEST, living, rng)) for _ in range(10))


def test_a_policy_is_selected_by_its_name() -> None:
    assert {name: make_policy(name).name for name in POLICY_NAMES} == dict(
        zip(POLICY_NAMES, POLICY_NAMES, strict=True)
    )
    assert tuple(POLICIES) == POLICY_NAMES
    assert POLICY_NAMES[0] == "prefix"


def test_the_error_for_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'fastest'.*prefix, random, .*session"):
        make_policy("fastest")


def test_prefix_takes_the_lowest_score() -> None:
    candidates = [candidate("a", score=0.3), candidate("b", score=0.1), candidate("c", score=0.2)]
    assert ranked("prefix", candidates) == ["b", "c", "a"]


def test_prefix_lets_load_decide_where_scores_differ_by_noise() -> None:
    candidates = [
        candidate("slightly better", score=1.0, running=3),
        candidate("slightly worse", score=1.02, running=2),
        candidate("worse", score=1.03),
    ]
    assert ranked("prefix", candidates) == ["slightly worse", "slightly better", "worse"]


def test_prefix_ignores_score_differences_below_half_an_engine_step() -> None:
    candidates = [
        candidate("stepping", score=0.10, running=9, inter_token_latency=0.04),
        candidate("idle", score=0.12),
        candidate("far", score=0.13),
    ]
    assert ranked("prefix", candidates) == ["idle", "stepping", "far"]


def test_prefix_ranks_a_score_at_the_limit_of_the_noise_once() -> None:
    at_limit = [candidate("best", score=0.0, running=1), candidate("at the limit", score=0.001)]
    assert ranked("prefix", at_limit) == ["at the limit", "best"]


def test_prefix_routes_by_load_without_the_index_or_a_whole_segment() -> None:
    silent = PlacementRequest(9, (), signal=False)
    loaded = [candidate("busy", running=2), candidate("idle")]
    assert ranked("prefix", loaded, request=silent) == ["idle", "busy"]


def test_prefix_uses_recent_placements_to_choose_between_equal_loads() -> None:
    candidates = [
        candidate("fewest", waiting=1, placed_lately=9.0),
        candidate("later", running=2, placed_lately=3.0),
        candidate("sooner", waiting=1, running=1, placed_lately=2.0),
    ]
    assert ranked("prefix", candidates) == ["fewest", "sooner", "later"]


def test_prefix_groups_prompts_by_their_first_segment_without_the_index() -> None:
    silent = PlacementRequest(1000, (KEY, b"another segment."), signal=False)
    counts = firsts("prefix", identical_candidates(4), 50, silent)
    assert len(counts) == 1
    others = {
        ranked(
            "prefix",
            identical_candidates(4),
            request=PlacementRequest(9, (bytes([i]) * 16,), signal=False),
        )[0]
        for i in range(50)
    }
    assert len(others) == 4


def test_prefix_does_not_group_prompts_at_a_busy_replica() -> None:
    silent = PlacementRequest(1000, (KEY,), signal=False)
    home = ranked("prefix", identical_candidates(4), request=silent)[0]
    busy = [
        candidate(of.replica_id, running=9 if of.replica_id == home else 2)
        for of in identical_candidates(4)
    ]
    assert ranked("prefix", busy, request=silent)[0] != home


@pytest.mark.parametrize(
    ("most", "others", "stays"),
    [(1, 0, True), (11, 7, True), (12, 7, False)],  # the limit is 1.25 times the mean, and one more
)
def test_prefix_groups_prompts_until_a_replica_has_clearly_more_requests(
    most: int, others: int, stays: bool
) -> None:
    silent = PlacementRequest(1000, (KEY,), signal=False)
    home = ranked("prefix", identical_candidates(4), request=silent)[0]
    counts = {
        of.replica_id: most if of.replica_id == home else others for of in identical_candidates(4)
    }

    def requests_of(of: Candidate) -> float:
        return counts[of.replica_id]

    first = gathered(KEY, identical_candidates(4), requests_of, random.Random(1))[0].replica_id
    assert (first == home) == stays


def test_grouping_without_candidates_returns_an_empty_list() -> None:
    assert gathered(KEY, [], lambda of: of.requests, random.Random(1)) == []


def test_adapter_affinity_prefers_a_replica_with_the_adapter_even_if_a_load_is_short() -> None:
    candidates = [candidate("idle", adapter_load_s=0.1), candidate("has it", running=9)]
    assert ranked("adapter_affinity", candidates) == ["has it", "idle"]


def test_round_robin_takes_turns_in_order() -> None:
    policy, rng = make_policy("round_robin"), random.Random(1)
    taken = []
    for _ in range(6):
        taken.append(policy.rank(REQUEST, identical_candidates(3), rng)[0].replica_id)
        policy.took(taken[-1])
    assert taken == taken[:3] * 2
    assert sorted(taken[:3]) == ["r0", "r1", "r2"]


def test_round_robin_continues_when_replicas_are_added_or_removed() -> None:
    policy, rng = make_policy("round_robin"), random.Random(1)

    def taken(*replica_ids: str) -> str:
        first = policy.rank(REQUEST, [candidate(of) for of in replica_ids], rng)[0].replica_id
        policy.took(first)
        return first

    assert taken("b") == "b"
    assert taken("a", "b", "c") == "c"
    assert taken("a", "b") == "a"
    assert taken("0", "b") == "b"


def test_round_robins_of_several_gateways_start_at_different_replicas() -> None:
    assert len({ranked("round_robin", identical_candidates(4), seed)[0] for seed in range(40)}) == 4


@pytest.mark.parametrize("name", ["least_loaded", "power_of_two"])
def test_fewer_requests_win_then_fewer_tokens(name: str) -> None:
    candidates = [
        candidate("a", waiting=1, running=1, queued_prefill_tokens=5, score=0.0),
        candidate("b", running=1, queued_prefill_tokens=9),
    ]
    assert ranked(name, candidates) == ["b", "a"]
    candidates = [
        candidate("a", waiting=1, queued_prefill_tokens=5),
        candidate("b", running=1, queued_prefill_tokens=3),
    ]
    assert ranked(name, candidates) == ["b", "a"]


def test_power_of_two_never_chooses_the_most_loaded_replica() -> None:
    candidates = [candidate(f"r{i}", waiting=i) for i in range(4)]
    counts = firsts("power_of_two", candidates)
    assert counts["r3"] == 0
    assert counts["r0"] > counts["r1"] > counts["r2"] > 0


sessions = [PlacementRequest(1, (), f"session {i}") for i in range(400)]


def home(request: PlacementRequest, candidates: list[Candidate]) -> str:
    return ranked("session", candidates, request=request)[0]


def test_a_session_stays_where_it_is_whatever_the_load() -> None:
    busy = [candidate(f"r{i}", waiting=i, score=i) for i in range(4)]
    assert all(home(of, identical_candidates(4)) == home(of, busy) for of in sessions)


def test_sessions_are_spread_evenly() -> None:
    counts = Counter(home(of, identical_candidates(4)) for of in sessions)
    assert all(70 < count < 130 for count in counts.values())


def test_a_lost_replica_moves_its_sessions_only_and_to_many() -> None:
    left = identical_candidates(5)[1:]
    before = {of.session: home(of, identical_candidates(5)) for of in sessions}
    after = {of.session: home(of, left) for of in sessions}
    assert all(after[s] == before[s] for s in before if before[s] != "r0")
    assert {after[s] for s in before if before[s] == "r0"} == {"r1", "r2", "r3", "r4"}


def test_a_request_without_a_session_goes_where_the_load_is_least() -> None:
    candidates = [candidate("a", running=2), candidate("b", running=1), candidate("c", running=3)]
    assert ranked("session", candidates, request=PlacementRequest(1)) == ["b", "a", "c"]


def test_long_session_ids_with_the_same_beginning_are_distinguished() -> None:
    long = [PlacementRequest(1, (), "x" * 500 + str(i)) for i in range(50)]
    assert len({home(of, identical_candidates(4)) for of in long}) == 4


def test_grouping_ranks_clearly_busier_replicas_last() -> None:
    rng = random.Random(1)
    order = ids(gathered(KEY, identical_candidates(4), lambda of: 0, rng))
    busy = {order[0]: 9, order[1]: 8, order[2]: 0, order[3]: 0}
    found = ids(gathered(KEY, identical_candidates(4), lambda of: busy[of.replica_id], rng))
    assert found == [order[2], order[3], order[1], order[0]]


def test_without_a_key_requests_are_not_grouped() -> None:
    rng = random.Random(1)
    found = {
        gathered(None, identical_candidates(4), lambda of: 0, rng)[0].replica_id for _ in range(50)
    }
    assert len(found) == 4
