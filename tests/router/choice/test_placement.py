"""One decision: who is asked first, why, and what is decided when little is known."""

import json
import random
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.admission.outlook import has_room
from router.board.load import ReplicaLoad
from router.board.recent import NO_TIERS, Recent, TierDepths
from router.choice.cost import UNKNOWN_LOAD_S, Elsewhere, TtftCorrection, predict_ttft
from router.choice.placement import Placement, place, place_blind, reusable_tokens
from router.choice.policies import POLICY_NAMES, Candidate, PlacementRequest, make_policy
from tests.router.loads import any_loads, changed, load, pool, tokens

KEYS = tuple(bytes([i]) * 16 for i in range(8))
PROMPT = 8 * 128 + 50
rngs = st.integers(0, 2**32).map(random.Random)
depths = st.dictionaries(st.integers(0, 8), st.integers(1, 8))


def decided(
    loads: dict[str, ReplicaLoad],
    held: dict[int, int] | None = None,
    recent: Recent | None = None,
    policy: str = "prefix",
    **options: object,
) -> Placement:
    """Where the prompt goes; held segments are expected ones too, unless `recent` is given."""
    return place(
        PlacementRequest(PROMPT, KEYS),
        loads,
        held,
        recent if recent is not None else Recent(depths=held or {}),
        make_policy(policy),
        random.Random(1),
        **options,  # type: ignore[arg-type]
    )


@given(any_loads, tokens, depths | st.none(), depths, rngs, st.sampled_from(POLICY_NAMES))
def test_every_replica_is_ranked_once_as_its_load_says(
    loads: dict[str, ReplicaLoad],
    prompt: int,
    held: dict[int, int] | None,
    expected: dict[int, int],
    rng: random.Random,
    policy: str,
) -> None:
    placement = place(
        PlacementRequest(prompt, KEYS), loads, held, Recent(expected), make_policy(policy), rng
    )
    assert sorted(placement.replica_ids) == sorted(loads)
    for candidate in placement.ranked:
        of = loads[candidate.replica_id]
        assert (candidate.url, candidate.slot, candidate.waiting) == (
            of.url,
            of.slot,
            of.queue.waiting,
        )
        assert candidate.raw_ttft_s == predict_ttft(of, prompt, candidate.cached_tokens)
        assert 0 <= candidate.confirmed_tokens <= candidate.cached_tokens <= max(0, prompt - 1)


@given(any_loads, tokens, depths, rngs, st.floats(0.1, 10), st.floats(0, 10), st.floats(0, 1))
def test_a_correction_changes_the_predicted_ttft_and_not_the_chosen_replica(
    loads: dict[str, ReplicaLoad],
    prompt: int,
    held: dict[int, int],
    rng: random.Random,
    slope: float,
    offset: float,
    token_s: float,
) -> None:
    request, state = PlacementRequest(prompt, KEYS), rng.getstate()
    learned = TtftCorrection(slope, offset, token_s)
    corrected = place(request, loads, held, Recent(held), make_policy("prefix"), rng, learned)
    rng.setstate(state)
    plain = place(request, loads, held, Recent(held), make_policy("prefix"), rng)
    assert corrected.replica_ids == plain.replica_ids
    for candidate in corrected.ranked:
        expected = learned.apply(candidate.raw_ttft_s, prompt_tokens=prompt)
        assert candidate.predicted_ttft_s == expected


@pytest.mark.parametrize(
    ("prompt", "segment", "expected"),
    [
        (0, 1, 0),
        (1, 1, 0),
        (9, 1, 8),
        (1, 128, 0),
        (128, 128, 0),
        (129, 128, 128),
        (256, 128, 128),
        (300, 128, 256),
        (300, 0, 0),
    ],
)
def test_whole_segments_before_the_last_token_can_be_reused(
    prompt: int, segment: int, expected: int
) -> None:
    assert reusable_tokens(prompt, segment) == expected


def test_a_placement_that_prefers_another_candidate_keeps_the_order_of_the_rest() -> None:
    placement = decided(pool(4), {2: 8})
    first, second, third, fourth = placement.replica_ids
    assert placement.preferring(2).replica_ids == (third, first, second, fourth)
    assert placement.preferring(1).replica_ids == (second, first, third, fourth)
    assert placement.preferring(0) == placement


def test_a_replica_that_holds_the_prefix_comes_first() -> None:
    placement = decided(pool(4), {2: 8})
    assert placement.chosen is not None
    assert (placement.chosen.replica_id, placement.chosen.cached_tokens) == ("r2", 1024)
    assert placement.best_cached_tokens == 1024
    assert placement.signal


def test_a_queue_longer_than_the_prefill_outweighs_a_prefix() -> None:
    loads = pool(2)
    loads["r0"] = changed(loads["r0"], queued_prefill_tokens=3000)
    assert decided(loads, {0: 8}).replica_ids[0] == "r0"
    loads["r0"] = changed(loads["r0"], queued_prefill_tokens=5000)
    assert decided(loads, {0: 8}).replica_ids[0] == "r1"


@pytest.mark.parametrize(
    ("popularity", "traffic_share", "chosen"),
    [(30.0, 1.0, "r1"), (1.0, 1.0, "r0"), (30.0, 0.2, "r0")],
    ids=["all use it", "none has it yet", "its replica can serve it"],
)
def test_a_popular_prefix_goes_where_the_load_is_least(
    popularity: float, traffic_share: float, chosen: str
) -> None:
    loads = pool(2)
    loads["r0"] = changed(loads["r0"], queued_prefill_tokens=100)
    recent = Recent(depths={0: 8}, popularity=popularity, traffic_share=traffic_share)
    assert decided(loads, {0: 8}, recent).replica_ids[0] == chosen


def test_a_burst_with_a_new_prefix_is_not_scattered() -> None:
    loads = pool(4)
    loads["r3"] = changed(loads["r3"], waiting=20, queued_prefill_tokens=3000)
    burst = Recent(depths={3: 8}, matched=(KEYS[7][:8],))
    assert decided(loads, {}, burst).replica_ids[0] == "r3"


def test_announced_tokens_are_distinguished_from_confirmed_ones() -> None:
    chosen = decided(pool(2), {1: 2}, Recent(depths={1: 6})).chosen
    assert chosen is not None
    assert (chosen.replica_id, chosen.confirmed_tokens, chosen.cached_tokens) == ("r1", 256, 768)


def test_confirmed_tokens_of_the_index_count_without_other_knowledge() -> None:
    chosen = decided(pool(2), {1: 2}, Recent()).chosen
    assert chosen is not None and chosen.cached_tokens == 256


def test_a_replica_that_caches_nothing_has_nothing_cached() -> None:
    loads = pool(2, segment_tokens=0)
    assert all(of.cached_tokens == 0 for of in decided(loads, {0: 8, 1: 8}).ranked)


def test_with_nothing_to_reuse_fewer_requests_win() -> None:
    loads = {
        f"{w}+{r}": load(f"{w}+{r}", waiting=w, running=r)
        for w, r in [(3, 3), (0, 2), (1, 0), (0, 0)]
    }
    assert decided(loads, {}).replica_ids == ("0+0", "1+0", "0+2", "3+3")


def test_a_short_queue_is_preferred_to_an_idle_engine_on_busy_cores() -> None:
    """Two of three engines work on a node's two cores: a third would slow all down."""
    loads = pool(3, engines_at_once=2)
    loads["r0"] = changed(loads["r0"], waiting=1, queued_prefill_tokens=200)
    loads["r1"] = changed(loads["r1"], waiting=1, queued_prefill_tokens=5000)
    placement = decided(loads)
    assert placement.replica_ids == ("r0", "r2", "r1")
    crowding = {candidate.replica_id: candidate.crowding_s for candidate in placement.ranked}
    assert crowding == {"r0": 0.0, "r1": 0.0, "r2": pytest.approx((1.074 + 0.2 + 1.074) / 2)}
    # what it has in its cache need not be computed next to the others
    cached = decided(loads, {2: 8}).candidate("r2")
    assert cached is not None
    assert cached.crowding_s == pytest.approx((0.05 + 0.05 + 0.05) / 2)
    # a dedicated GPU, a free core, a dedicated node: an idle engine is the best
    assert decided(pool_as(loads, engines_at_once=0)).replica_ids[0] == "r2"
    assert decided(pool_as(loads, engines_at_once=3)).replica_ids[0] == "r2"
    loads["r2"] = changed(loads["r2"], node_ip="10.0.0.2")
    assert decided(loads).replica_ids[0] == "r2"


def pool_as(loads: dict[str, ReplicaLoad], **fields: int) -> dict[str, ReplicaLoad]:
    return {replica_id: changed(of, **fields) for replica_id, of in loads.items()}


def test_without_the_index_load_decides_and_equal_loads_are_grouped_by_prefix() -> None:
    placements = [decided(pool(4)) for _ in range(20)]
    assert not any(placement.signal for placement in placements)
    assert len({placement.replica_ids for placement in placements}) == 1
    home = placements[0].replica_ids[0]
    loads = pool(4)
    loads[home] = changed(loads[home], queued_prefill_tokens=2000)
    assert decided(loads).replica_ids[-1] == home


def test_without_loads_the_placement_is_empty() -> None:
    placement = decided({}, {}, shadow=make_policy("random"))
    assert not placement.ranked
    assert placement.chosen is None
    assert placement.replica_ids == ()
    assert placement.best_cached_tokens == 0
    assert placement.shadow is None


def test_a_shadow_is_recorded_with_its_regret_and_not_followed() -> None:
    loads = pool(2)
    loads["r1"] = changed(loads["r1"], running=5)
    placement = decided(loads, {1: 8}, shadow=make_policy("least_loaded"))
    shadow = placement.shadow
    assert placement.policy == "prefix" and placement.replica_ids[0] == "r1"
    assert shadow is not None
    assert (shadow.policy, shadow.replica_id, shadow.cached_tokens) == ("least_loaded", "r0", 0)
    assert shadow.predicted_ttft_s == pytest.approx(PROMPT / 1000)
    assert shadow.regret_s == pytest.approx(-1.024)


def test_with_full_caches_a_slightly_shorter_queue_does_not_outweigh_a_prefix() -> None:
    loads = pool(
        2,
        running=10,
        kv_use=0.95,
        kv_capacity_tokens=10_000,
        decode_s=10.0,
        inter_token_latency=0.1,
        queued_prefill_tokens=2000,
    )
    loads["r1"] = changed(loads["r1"], queued_prefill_tokens=2500)
    assert decided(loads, {1: 8}).replica_ids[0] == "r1"
    assert decided(loads).replica_ids[0] == "r0"


def test_a_candidate_explains_itself_in_json() -> None:
    candidate = decided(pool(1, kv_use=0.5), {0: 2}).ranked[0]
    explained = json.loads(msgspec.json.encode(candidate))
    assert explained.keys() == {
        field.encode_name for field in msgspec.structs.fields(type(candidate))
    }
    assert {"predicted_ttft", "raw_ttft", "wait"} <= explained.keys()
    assert (explained["confirmed_tokens"], explained["kv_use"]) == (256, 0.5)


def blind(
    loads: dict[str, ReplicaLoad], in_flight: dict[str, int], request: PlacementRequest
) -> tuple[str, ...]:
    return place_blind(request, loads, in_flight, random.Random()).replica_ids


def test_a_blind_placement_keeps_a_prompts_replica_for_any_last_known_load() -> None:
    request = PlacementRequest(PROMPT, KEYS)
    busy = {r: changed(of, running=i, waiting=i) for i, (r, of) in enumerate(pool(4).items())}
    assert blind(pool(4), {}, request) == blind(busy, {}, request)
    other = [blind(pool(4), {}, PlacementRequest(9, (bytes([i]) * 16,)))[0] for i in range(50)]
    assert len(set(other)) == 4


def test_a_blind_placement_keeps_a_sessions_replica() -> None:
    prompts = [PlacementRequest(9, (bytes([i]) * 16,), "session") for i in range(20)]
    assert len({blind(pool(4), {}, request) for request in prompts}) == 1


def test_a_blind_placement_skips_a_replica_with_clearly_more_of_our_requests() -> None:
    request = PlacementRequest(PROMPT, KEYS)
    home, *rest = blind(pool(4), {}, request)
    assert blind(pool(4), {home: 1}, request)[0] == home
    assert blind(pool(4), {home: 5}, request) == (*rest, home)


def test_a_blind_placement_sends_an_unknown_prompt_to_any_replica() -> None:
    found = Counter(blind(pool(4), {}, PlacementRequest(100))[0] for _ in range(200))
    assert len(found) == 4


def test_a_blind_placement_predicts_nothing() -> None:
    last = {"running": 9, "queued_prefill_tokens": 9000, "inter_token_latency": 0.1, "kv_use": 0.9}
    loads = pool(2, waiting=9, grammar_wait_s=5.0, **last)
    placement = place_blind(PlacementRequest(1000, KEYS), loads, {"r0": 3}, random.Random(1))
    assert (placement.policy, placement.signal) == ("blind", False)
    assert all(of.cached_tokens == 0 and not of.synced for of in placement.ranked)
    # what was reported last is too old to be shown or to be counted
    assert all(getattr(of, name) == 0 for name in last for of in placement.ranked)
    assert all(of.trial_wait_s == 0 for of in placement.ranked)
    assert {of.replica_id: of.waiting for of in placement.ranked} == {"r0": 3, "r1": 0}
    assert not place_blind(PlacementRequest(1), {}, {}, random.Random(1)).ranked


@pytest.mark.parametrize(("needs_trial", "first"), [(True, "b"), (False, "a")])
def test_a_request_that_needs_a_trial_goes_to_a_replica_without_pending_compiles(
    needs_trial: bool, first: str
) -> None:
    loads = {
        "a": load("a", slot=0, grammar_wait_s=5.0),
        "b": load("b", slot=1, queued_prefill_tokens=1000, waiting=1),
    }
    placement = place(
        PlacementRequest(PROMPT, KEYS, needs_trial=needs_trial),
        loads,
        {},
        Recent(),
        make_policy("prefix"),
        random.Random(1),
    )
    assert placement.replica_ids[0] == first
    (there,) = (c for c in placement.ranked if c.replica_id == "a")
    assert there.trial_wait_s == (5.0 if needs_trial else 0.0)
    assert there.raw_ttft_s >= there.trial_wait_s
    assert has_room(there)  # so that no other request waits behind it in the gateway


def test_the_load_time_of_an_adapter_is_the_mean_over_replicas() -> None:
    """The difference between means of a few loads is chance: an idle replica gets the request."""
    loads = {
        "busy": load("busy", slot=0, waiting=2, queued_prefill_tokens=100, adapter_load_s=0.05),
        "idle": load("idle", slot=1, adapter_load_s=0.16),
        "new": load("new", slot=2, waiting=4, queued_prefill_tokens=400),
    }
    prompt = PlacementRequest(24, adapter="sql@1")
    placement = place(prompt, loads, None, Recent(), make_policy("prefix"), random.Random(1))
    assert placement.replica_ids == ("idle", "busy", "new")
    assert [c.adapter_load_s for c in placement.ranked] == pytest.approx([0.105] * 3)
    # where it is in memory already, no load is counted
    loads["busy"] = changed(loads["busy"], adapters=("sql@1",))
    placement = place(prompt, loads, None, Recent(), make_policy("prefix"), random.Random(1))
    assert placement.replica_ids[0] == "busy"
    assert placement.ranked[0].adapter_load_s == 0.0


@pytest.mark.parametrize(
    ("busy", "first", "wait_s"),
    [(4, "queued", 2.0), (3, "full", 0.0)],
    ids=["every slot is in use", "a slot is free"],
)
def test_a_request_with_an_adapter_goes_where_it_waits_least_for_a_slot(
    busy: int, first: str, wait_s: float
) -> None:
    loads = {
        "full": load("full", slot=0, adapters_busy=busy, adapter_slots=4, decode_s=8.0),
        "queued": load("queued", slot=1, queued_prefill_tokens=1000, adapter_slots=4),
    }
    prompt = PlacementRequest(24, adapter="sql@1")
    placement = place(prompt, loads, None, Recent(), make_policy("prefix"), random.Random(1))
    assert placement.replica_ids[0] == first
    full = placement.candidate("full")
    assert full is not None
    assert full.adapter_wait_s == wait_s
    assert full.raw_ttft_s == pytest.approx(UNKNOWN_LOAD_S + wait_s + 0.024)
    # where the adapter is in memory, its requests need no other slot
    loads["full"] = changed(loads["full"], adapters=("sql@1",))
    placement = place(prompt, loads, None, Recent(), make_policy("prefix"), random.Random(1))
    assert placement.replica_ids[0] == "full"
    assert placement.ranked[0].adapter_wait_s == 0.0


def test_an_unmeasured_load_of_an_adapter_takes_the_default_time() -> None:
    prompt = PlacementRequest(24, adapter="sql@1")
    placement = place(prompt, pool(2), None, Recent(), make_policy("prefix"), random.Random(1))
    assert {c.adapter_load_s for c in placement.ranked} == {UNKNOWN_LOAD_S}


LOADABLE = TierDepths(host={0: 2, 1: 6})
READABLE = TierDepths(host={0: 2, 1: 4}, disk={0: 2, 1: 6})


def test_tokens_of_the_host_tier_are_loaded_where_that_is_faster_than_to_compute_them() -> None:
    loads = pool(2, host_load_rate=4000.0)
    placement = decided(loads, {0: 2}, tiers=LOADABLE)
    there, other = placement.ranked
    assert (there.replica_id, other.replica_id) == ("r1", "r0")
    assert there.host_tokens == 6 * 128
    assert there.host_load_s == pytest.approx(6 * 128 / 4000)
    assert there.cached_tokens == there.confirmed_tokens == 6 * 128
    assert there.raw_ttft_s == pytest.approx(there.host_load_s + (PROMPT - 6 * 128) / 1000)
    assert (other.host_tokens, other.host_load_s, other.cached_tokens) == (0, 0.0, 2 * 128)
    assert not there.refuses_host and not other.refuses_host


def test_tokens_of_the_host_tier_are_computed_where_that_is_faster_than_to_load_them() -> None:
    placement = decided(pool(2, host_load_rate=500.0), {0: 2}, tiers=LOADABLE)
    best, there = placement.ranked
    assert best.replica_id == "r0"  # it has two segments in its cache
    assert (there.host_tokens, there.host_load_s) == (6 * 128, 0.0)
    assert there.refuses_host and there.cached_tokens == 0
    assert there.raw_ttft_s == pytest.approx(PROMPT / 1000)


def test_an_unmeasured_host_tier_is_tried() -> None:
    placement = decided(pool(2), {}, tiers=LOADABLE)
    assert placement.ranked[0].host_load_s == pytest.approx(6 * 128 / 10_000)


def test_the_cache_goes_before_the_host_tier_of_another_replica() -> None:
    placement = decided(pool(2, host_load_rate=4000.0), {0: 6}, tiers=TierDepths(host={0: 6, 1: 6}))
    assert placement.replica_ids == ("r0", "r1")
    assert placement.ranked[0].host_tokens == 0


def test_a_prefix_that_an_announced_request_uses_is_not_loaded_again() -> None:
    loads = pool(2, host_load_rate=4000.0)
    placement = decided(loads, {}, Recent(depths={1: 6}), tiers=LOADABLE)
    there = placement.candidate("r1")
    assert there is not None
    assert (there.host_tokens, there.cached_tokens, there.confirmed_tokens) == (0, 6 * 128, 0)


def test_tokens_of_the_disk_tier_are_read_and_then_loaded() -> None:
    placement = decided(pool(2, host_load_rate=4000.0, disk_load_rate=2000.0), {}, tiers=READABLE)
    there = placement.ranked[0]
    assert there.replica_id == "r1"
    assert (there.host_tokens, there.disk_tokens) == (4 * 128, 2 * 128)
    assert there.host_load_s == pytest.approx(4 * 128 / 4000)
    assert there.disk_load_s == pytest.approx(2 * 128 / 4000 + 2 * 128 / 2000)
    assert there.cached_tokens == there.confirmed_tokens == 6 * 128
    assert not there.refuses_host and not there.refuses_disk


def test_a_slow_disk_is_not_read_while_the_host_tier_is_loaded() -> None:
    placement = decided(pool(2, host_load_rate=4000.0, disk_load_rate=1200.0), {}, tiers=READABLE)
    there = placement.candidate("r1")
    assert there is not None
    assert (there.disk_tokens, there.disk_load_s, there.cached_tokens) == (2 * 128, 0.0, 4 * 128)
    assert there.refuses_disk and not there.refuses_host


def test_a_slow_host_tier_is_not_loaded_and_the_disk_is_not_read_either() -> None:
    placement = decided(pool(2, host_load_rate=900.0, disk_load_rate=9000.0), {}, tiers=READABLE)
    there = placement.candidate("r1")
    assert there is not None
    assert (there.host_load_s, there.disk_load_s, there.cached_tokens) == (0.0, 0.0, 0)
    assert there.refuses_disk and there.refuses_host


def test_an_unmeasured_disk_tier_is_tried() -> None:
    placement = decided(pool(2), {}, tiers=TierDepths(disk={1: 6}))
    assert placement.ranked[0].disk_load_s == pytest.approx(6 * 128 / 10_000 + 6 * 128 / 3_000)


FAST = {"host_load_rate": 4000.0, "disk_load_rate": 2000.0}


def test_a_load_is_priced_behind_the_loads_that_are_queued_on_its_replica() -> None:
    loads = pool(2, **FAST, queued_host_tokens=400, queued_disk_tokens=200)
    there = decided(loads, {}, tiers=LOADABLE).candidate("r1")
    assert there is not None
    # what is read from files is loaded from the host too
    assert there.tier_wait_s == pytest.approx(600 / 4000)
    assert there.host_load_s == pytest.approx(6 * 128 / 4000)
    computing_s = (PROMPT - 6 * 128) / 1000
    assert there.raw_ttft_s == pytest.approx(there.tier_wait_s + there.host_load_s + computing_s)
    assert there.score >= there.raw_ttft_s


def test_an_engine_loads_while_it_computes_the_prompts_before() -> None:
    loads = pool(2, **FAST, waiting=1, queued_prefill_tokens=300)
    there = decided(loads, {}, tiers=LOADABLE).candidate("r1")
    assert there is not None
    assert 0.0 < there.host_load_s < 0.3
    assert there.raw_ttft_s == pytest.approx(0.3 + (PROMPT - 6 * 128) / 1000)


@pytest.mark.parametrize(("queued", "refuses"), [(0, True), (600, False)])
def test_a_load_that_is_slower_than_to_compute_is_worth_it_behind_a_long_queue(
    queued: int, refuses: bool
) -> None:
    loads = pool(2, host_load_rate=900.0, waiting=bool(queued), queued_prefill_tokens=queued)
    there = decided(loads, {}, tiers=LOADABLE).candidate("r1")
    assert there is not None and there.refuses_host == refuses


def test_a_read_from_disk_waits_for_both_paths() -> None:
    loads = pool(2, **FAST, queued_host_tokens=100, queued_disk_tokens=50)
    there = decided(loads, {}, tiers=READABLE).candidate("r1")
    assert there is not None and there.disk_load_s > 0.0
    assert there.tier_wait_s == pytest.approx(150 / 4000 + 50 / 2000)


@pytest.mark.parametrize(
    ("host_tokens", "disk_tokens", "refuses_disk", "refuses_host"),
    [(0, 0, False, False), (0, 400, True, False), (4000, 0, True, True)],
    ids=["nothing is queued", "reads are queued", "loads are queued"],
)
def test_a_request_computes_what_takes_longer_to_load_behind_the_queue(
    host_tokens: int, disk_tokens: int, refuses_disk: bool, refuses_host: bool
) -> None:
    loads = pool(2, **FAST)
    loads["r1"] = changed(
        loads["r1"], queued_host_tokens=host_tokens, queued_disk_tokens=disk_tokens
    )
    there = decided(loads, {}, tiers=READABLE).candidate("r1")
    assert there is not None
    assert (there.refuses_disk, there.refuses_host) == (refuses_disk, refuses_host)
    assert there.loaded_tokens == (0 if refuses_host else 512, 0 if refuses_disk else 256, 0)
    assert (there.tier_wait_s > 0.0) == (bool(disk_tokens) and not refuses_host)


def test_a_short_prefix_on_the_host_is_loaded_with_a_long_one_on_disk() -> None:
    """Alone it would be computed: the queue takes longer than that."""
    loads = pool(2, **FAST, queued_host_tokens=2 * 128 * 3)
    there = decided(loads, {}, tiers=TierDepths(host={1: 1}, disk={1: 8})).candidate("r1")
    assert there is not None
    assert there.loaded_tokens == (128, 7 * 128, 0)


def test_the_next_best_way_is_predicted_too() -> None:
    loads = pool(2, **FAST)
    there = decided(loads, {}, tiers=READABLE).ranked[0]
    assert there.disk_load_s > 0.0
    host_only_s = 4 * 128 / 4000 + (PROMPT - 4 * 128) / 1000
    assert there.other_way_ttft_s == pytest.approx(host_only_s)
    assert decided(loads, {0: 8, 1: 8}).ranked[0].other_way_ttft_s == 0.0


@pytest.mark.parametrize(("queued", "wait_s"), [(0, 0.0), (400, 0.1), (40_000, 6 * 0.128)])
def test_a_request_that_shares_a_prefix_waits_for_the_load_of_the_first(
    queued: int, wait_s: float
) -> None:
    """Never longer than to compute it: otherwise, the first request computes it."""
    loads = pool(2, **FAST, queued_host_tokens=queued)
    there = decided(loads, {}, Recent(depths={1: 6}), tiers=LOADABLE).candidate("r1")
    assert there is not None
    assert (there.host_tokens, there.cached_tokens) == (0, 6 * 128)
    assert there.tier_wait_s == pytest.approx(wait_s)
    assert there.raw_ttft_s == pytest.approx(wait_s + (PROMPT - 6 * 128) / 1000)


PULLS = {"host_load_rate": 4000.0, "disk_load_rate": 2000.0, "peer_load_rate": 3000.0}
PULLED_TOKEN_S = 1 / 4000 + 1 / 3000


def peers(count: int = 2, **fields: object) -> dict[str, ReplicaLoad]:
    """Replicas that pull from each other."""
    loads = pool(count, **PULLS, **fields)
    return {name: changed(of, peer=f"{name}:5600") for name, of in loads.items()}


def candidate_of(placement: Placement, replica_id: str) -> Candidate:
    found = placement.candidate(replica_id)
    assert found is not None
    return found


def test_a_replica_pulls_what_another_has_in_its_host_tier() -> None:
    there = candidate_of(decided(peers(), {0: 1}, tiers=LOADABLE), "r0")
    assert (there.peer_id, there.peer) == ("r1", "r1:5600")
    assert (there.host_tokens, there.peer_tokens) == (128, 4 * 128)
    assert there.loaded_tokens == (128, 0, 4 * 128)
    assert there.peer_load_s == pytest.approx(4 * 128 * PULLED_TOKEN_S)
    assert there.cached_tokens == there.confirmed_tokens == 6 * 128
    loads_s = there.host_load_s + there.peer_load_s
    assert there.raw_ttft_s == pytest.approx(loads_s + (PROMPT - 6 * 128) / 1000)
    computes_s = 128 / 4000 + (PROMPT - 2 * 128) / 1000
    assert there.other_way_ttft_s == pytest.approx(computes_s)


def test_a_request_leaves_a_busy_replica_whose_prefix_another_can_pull() -> None:
    loads = peers()
    loads["r1"] = changed(loads["r1"], waiting=1, queued_prefill_tokens=2000)
    assert decided(loads, {}, tiers=LOADABLE).ranked[0].pulls
    without = {name: changed(of, peer="") for name, of in loads.items()}
    placement = decided(without, {}, tiers=LOADABLE)
    assert not any(candidate.pulls for candidate in placement.ranked)


def test_a_replica_that_pulls_leaves_its_own_files_unread() -> None:
    tiers = TierDepths(host={0: 2, 1: 6}, disk={0: 6})
    loads = {name: changed(of, disk_load_rate=1500.0) for name, of in peers().items()}
    there = candidate_of(decided(loads, {}, tiers=tiers), "r0")
    assert there.pulls and there.refuses_disk and not there.refuses_host
    assert there.loaded_tokens == (2 * 128, 0, 4 * 128)
    loads = {name: changed(of, disk_load_rate=9000.0) for name, of in peers().items()}
    there = candidate_of(decided(loads, {}, tiers=tiers), "r0")
    assert not there.pulls
    assert there.loaded_tokens == (2 * 128, 4 * 128, 0)


def test_a_slow_pull_is_computed_instead() -> None:
    loads = {name: changed(of, peer_load_rate=900.0) for name, of in peers().items()}
    there = candidate_of(decided(loads, {}, tiers=LOADABLE), "r0")
    assert (there.peer_tokens, there.peer_load_s, there.cached_tokens) == (4 * 128, 0.0, 2 * 128)
    assert not there.pulls and there.host_load_s > 0.0


def test_a_replica_pulls_nothing_that_it_has() -> None:
    there = candidate_of(decided(peers(), {}, tiers=LOADABLE), "r1")
    assert (there.peer_tokens, there.peer_id, there.peer) == (0, "", "")
    cached = candidate_of(decided(peers(), {0: 7}, tiers=LOADABLE), "r0")
    assert (cached.peer_tokens, cached.peer_id, cached.other_way_ttft_s) == (0, "", 0.0)


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, "r2"),  # it has the most
        ({"r2": {"peer": ""}}, "r1"),
        ({"r2": {"leaving": True}}, "r1"),
        ({"r2": {"suspect": True}}, "r1"),
        ({"r2": None}, "r1"),  # it left the board
        ({"r2": None, "r1": None}, "r3"),
        ({"r2": None, "r1": None, "r3": None}, ""),
    ],
    ids=str,
)
def test_the_source_of_a_pull_is_the_serving_replica_with_the_most_tokens(
    changes: dict[str, dict[str, object] | None], source: str
) -> None:
    loads = peers(4)
    for name, fields in changes.items():
        if fields is None:
            del loads[name]
        else:
            loads[name] = changed(loads[name], **fields)
    tiers = TierDepths(host={1: 5, 2: 6, 3: 4})
    assert candidate_of(decided(loads, {}, tiers=tiers), "r0").peer_id == source


def test_of_equal_sources_the_one_with_the_shorter_wait_is_pulled_from() -> None:
    loads = peers(3)
    loads["r1"] = changed(loads["r1"], waiting=1, queued_prefill_tokens=500)
    tiers = TierDepths(host={1: 6, 2: 6})
    placement = decided(loads, {}, tiers=tiers)
    assert candidate_of(placement, "r0").peer_id == "r2"


def test_the_replica_with_the_most_pulls_from_none() -> None:
    tiers = TierDepths(host={0: 3, 1: 6})
    placement = decided(peers(), {}, tiers=tiers)
    assert [candidate_of(placement, name).peer_id for name in ("r0", "r1")] == ["r1", ""]
    assert candidate_of(placement, "r0").peer_tokens == 3 * 128


def test_blocks_of_an_adapter_are_not_pulled() -> None:
    request = PlacementRequest(PROMPT, KEYS, adapter="sql@1")
    policy, rng = make_policy("prefix"), random.Random(1)
    placement = place(request, peers(), {}, Recent(), policy, rng, tiers=LOADABLE)
    assert {candidate.peer_tokens for candidate in placement.ranked} == {0}


def test_a_replica_that_does_not_serve_its_blocks_cannot_pull_others() -> None:
    loads = peers()
    loads["r0"] = changed(loads["r0"], peer="")
    there = candidate_of(decided(loads, {}, tiers=LOADABLE), "r0")
    assert (there.peer_tokens, there.peer_id, there.pulls) == (0, "", False)


@pytest.mark.parametrize(("queued", "wait_s"), [(0, 0.0), (300, 300 * PULLED_TOKEN_S)])
def test_a_request_that_shares_a_prefix_waits_for_the_pull_of_the_first(
    queued: int, wait_s: float
) -> None:
    loads = peers(queued_peer_tokens=queued)
    tiers = TierDepths(host={1: 6})
    there = candidate_of(decided(loads, {}, Recent(depths={0: 6}), tiers=tiers), "r0")
    assert (there.peer_tokens, there.cached_tokens) == (0, 6 * 128)
    assert there.tier_wait_s == pytest.approx(wait_s)


def elsewhere(ready_s: float, *, always: bool = False) -> Elsewhere:
    return Elsewhere("p0", "10.0.0.9:5600", 7 * 128, ready_s, always)


def prefilling(
    loads: dict[str, ReplicaLoad], where: Elsewhere, tiers: TierDepths = NO_TIERS
) -> Placement:
    request = PlacementRequest(PROMPT, KEYS, elsewhere=where)
    policy, rng = make_policy("prefix"), random.Random(1)
    return place(request, loads, {}, Recent(), policy, rng, tiers=tiers)


def test_a_busy_replica_has_its_prompt_prefilled_elsewhere() -> None:
    loads = peers(1, queued_prefill_tokens=2000)
    there = candidate_of(prefilling(loads, elsewhere(0.3)), "r0")
    assert (there.way, there.prefill_id, there.prefill_peer) == ("prefill", "p0", "10.0.0.9:5600")
    assert (there.prefill_tokens, there.cached_tokens, there.confirmed_tokens) == (896, 896, 0)
    assert there.prefills_elsewhere
    assert there.loaded_tokens == (0, 0, 896)
    # it pulls while it computes the prompts before
    assert there.raw_ttft_s == pytest.approx(there.way_ttfts_s["prefill"])
    assert there.raw_ttft_s < there.other_way_ttft_s == there.way_ttfts_s["compute"]
    [idle] = prefilling(peers(1), elsewhere(3.0)).ranked
    assert (idle.way, idle.prefills_elsewhere, idle.loaded_tokens) == ("compute", False, (0, 0, 0))
    assert (idle.prefill_tokens, idle.ready_s, idle.cached_tokens) == (896, 0.0, 0)


def test_what_the_host_tier_has_is_not_pulled_from_the_prefill_pool() -> None:
    there = candidate_of(prefilling(peers(1), elsewhere(0.0), TierDepths(host={0: 3})), "r0")
    assert (there.way, there.host_tokens, there.prefill_tokens) == ("prefill", 3 * 128, 4 * 128)
    assert (there.cached_tokens, there.confirmed_tokens) == (7 * 128, 3 * 128)
    assert there.host_load_s > 0.0


def test_a_pool_may_always_have_its_prompts_prefilled_elsewhere() -> None:
    [idle] = prefilling(peers(1), elsewhere(3.0, always=True)).ranked
    assert (idle.way, idle.ready_s) == ("prefill", 3.0)
    assert idle.raw_ttft_s > 3.0 > idle.other_way_ttft_s


def test_a_replica_that_cannot_pull_computes_its_prompt() -> None:
    loads = {name: changed(of, peer="") for name, of in peers(1).items()}
    [there] = prefilling(loads, elsewhere(0.0, always=True)).ranked
    assert (there.prefill_tokens, there.prefill_id, there.way) == (0, "", None)


@pytest.mark.parametrize("popularity", [1.0, 4.0, 30.0])
def test_a_popular_prefix_spreads_no_later_by_pulls_than_by_computing(popularity: float) -> None:
    loads = peers(4)
    computing = {name: changed(of, peer="") for name, of in loads.items()}
    tiers = TierDepths(host={0: 7})
    request = PlacementRequest(PROMPT, KEYS)
    recent = Recent(popularity=popularity, traffic_share=0.2)
    scores = []
    for each in (loads, computing):
        policy, rng = make_policy("prefix"), random.Random(1)
        placement = place(request, each, {0: 7}, recent, policy, rng, tiers=tiers)
        scores.append(candidate_of(placement, "r1").score)
    pulled, computed = scores
    assert pulled < computed
