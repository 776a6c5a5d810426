"""Predicted time to first token, which every decision compares, and what is learned of it."""

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.board.load import ReplicaLoad
from router.choice.cost import (
    MAX_SLOPE,
    MEMORY,
    MIN_SLOPE,
    OTHERS,
    OWN,
    UNJUDGED_ERROR,
    Elsewhere,
    TierLoadS,
    TierTokens,
    TtftCorrection,
    crowding_s,
    predict_ttft,
    price,
    queue_s,
    score,
    step_under_way_s,
    tier_load_s,
    tier_wait_s,
    tier_ways,
    wait_s,
)
from tests.router.loads import any_load, changed, load, tokens

seconds = st.floats(0, 1000)
any_float = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize(
    ("queued", "prompt", "cached", "rate", "step", "expected"),
    [
        (0, 1000, 0, 1000.0, 0.0, 1.0),
        (500, 1000, 0, 1000.0, 0.0, 1.5),
        (500, 1000, 800, 1000.0, 0.0, 0.7),
        (0, 1000, 1000, 1000.0, 0.02, 0.02),
        (0, 1000, 2000, 1000.0, 0.0, 0.0),
        (0, 1000, 0, 500.0, 0.1, 2.1),
    ],
)
def test_the_uncached_tokens_ahead_are_prefilled_after_the_step_under_way(
    queued: int, prompt: int, cached: int, rate: float, step: float, expected: float
) -> None:
    replica = load(queued_prefill_tokens=queued, prefill_rate=rate, inter_token_latency=step)
    assert predict_ttft(replica, prompt, cached) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.0),  # it does nothing
        ({"running": 4}, 0.5 * (0.02 + 4 * 0.005)),
        # a step that prefills makes tokens late, and is counted by what is queued
        ({"running": 4, "inter_token_latency": 3.0}, 0.5 * (0.02 + 4 * 0.005)),
        ({"waiting": 1}, 0.5 * 0.02),
        ({"running": 4, "inter_token_latency": 0.03, "step_s": 0.0, "sequence_s": 0.0}, 0.03),
    ],
)
def test_the_step_under_way_is_half_over(fields: dict[str, Any], expected: float) -> None:
    replica = load(**{"step_s": 0.02, "sequence_s": 0.005, **fields})
    assert step_under_way_s(replica) == pytest.approx(expected)
    assert predict_ttft(replica, 0) == pytest.approx(wait_s(replica, 0) + expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"kv_use": 0.5}, 0.0),  # the prompt fits
        ({"kv_use": 0.95}, 50 * 4.0 / 1000),
        ({"kv_use": 0.95, "running": 20}, 50 * 4.0 / 1000),
        ({"kv_use": 0.95, "decode_s": 8.0}, 50 * 8.0 / 1000),
        # what is ahead takes room too, and is prefilled meanwhile
        ({"kv_use": 0.95, "queued_prefill_tokens": 100}, 150 * 4.0 / 1000 - 0.1),
        ({"kv_use": 0.95, "queued_prefill_tokens": 100, "prefill_rate": 100.0}, 0.0),
        ({"kv_use": 0.95, "decode_s": 0.0}, 0.0),  # none has ended yet
        ({"kv_use": 0.95, "kv_capacity_tokens": 0}, 0.0),  # unknown
        ({"kv_use": 0.95, "running": 0}, 0.0),  # nothing runs that could make room
    ],
)
def test_a_prompt_that_does_not_fit_the_kv_cache_waits_for_running_requests(
    fields: dict[str, Any], expected: float
) -> None:
    full = {"kv_capacity_tokens": 1000, "running": 10, "decode_s": 4.0}
    replica = load("full", **{**full, **fields})
    roomy = changed(replica, kv_capacity_tokens=0)
    assert predict_ttft(replica, 100) - predict_ttft(roomy, 100) == pytest.approx(expected)


@given(any_load, tokens, tokens)
def test_a_predicted_ttft_is_never_negative(replica: ReplicaLoad, prompt: int, cached: int) -> None:
    assert predict_ttft(replica, prompt, cached) >= 0


@given(any_load, tokens, tokens, tokens)
def test_a_longer_prompt_never_has_a_shorter_predicted_ttft(
    replica: ReplicaLoad, prompt: int, more: int, cached: int
) -> None:
    assert predict_ttft(replica, prompt, cached) <= predict_ttft(replica, prompt + more, cached)


@given(any_load, tokens, tokens, tokens)
def test_more_cached_tokens_never_raise_the_predicted_ttft(
    replica: ReplicaLoad, prompt: int, cached: int, more: int
) -> None:
    assert predict_ttft(replica, prompt, cached + more) <= predict_ttft(replica, prompt, cached)


@given(any_load, tokens, tokens)
def test_a_longer_queue_never_lowers_the_predicted_ttft(
    replica: ReplicaLoad, prompt: int, more: int
) -> None:
    longer = changed(replica, queued_prefill_tokens=replica.queue.prefill_tokens + more)
    assert predict_ttft(replica, prompt) <= predict_ttft(longer, prompt)


@given(any_load, tokens, st.floats(0, 1))
def test_a_fuller_kv_cache_never_lowers_the_predicted_ttft(
    replica: ReplicaLoad, prompt: int, kv_use: float
) -> None:
    emptier, fuller = sorted([replica, changed(replica, kv_use=kv_use)], key=lambda r: r.cache.use)
    assert predict_ttft(emptier, prompt) <= predict_ttft(fuller, prompt)


@given(any_load, tokens, st.floats(1, 100))
def test_a_faster_replica_never_has_a_longer_predicted_ttft(
    replica: ReplicaLoad, prompt: int, times: float
) -> None:
    faster = changed(replica, prefill_rate=replica.pace.prefill_rate * times)
    assert predict_ttft(faster, prompt) <= predict_ttft(replica, prompt)


@given(st.floats(0, 1e6), st.floats(0, 1), st.floats(0, 1), st.integers(1, 1000))
def test_the_price_of_a_prefix_falls_with_its_popularity_and_its_traffic_share(
    popularity: float, traffic_share: float, less: float, replicas: int
) -> None:
    least = max(1.0, popularity) ** -2
    found = price(popularity, traffic_share, replicas)
    assert least * 0.999 <= found <= price(popularity, less * traffic_share, replicas) <= 1.0
    assert found <= price(less * popularity, traffic_share, replicas)


def test_a_prefix_that_one_replica_cannot_serve_alone_has_the_square_of_its_share() -> None:
    assert price(5, 0.0, 8) == pytest.approx(0.2)
    assert price(5, 1 / 8, 8) == pytest.approx(OWN / 2)
    assert price(5, 2 / 8, 8) == price(5, 1.0, 8) == pytest.approx(0.04)


def test_a_prefix_that_one_replica_can_serve_is_never_nearly_free_elsewhere() -> None:
    assert price(1000, 0.0, 8) == OWN
    assert price(1000, 2 / 8, 8) == pytest.approx(1e-6)


def test_a_score_counts_a_requests_own_prefill_for_others_too() -> None:
    replica = load(queued_prefill_tokens=500, inter_token_latency=0.02)
    assert score(replica, 0.5, 1000, 200, 0, 1.0) == pytest.approx(0.52 + 0.8 * (1 + OTHERS))


def test_a_score_counts_popular_uncached_tokens_at_their_price() -> None:
    assert score(load(), 0.0, 1000, 128, 640, 0.1) == pytest.approx(
        (51.2 + 360) / 1000 * (1 + OTHERS)
    )
    assert score(load(), 0.0, 1000, 640, 640, 0.1) == pytest.approx(0.36 * (1 + OTHERS))
    assert score(load(), 0.0, 100, 0, 640, 0.0) == pytest.approx(0.0)


def test_one_more_working_engine_delays_all_first_tokens_of_its_node() -> None:
    """Three on two cores take 3/2 of the time: its own 0.4 s, what overlaps of 0.1 and of 1 s."""
    idle = load(engines_at_once=2)
    at_work = [load(running=1, queued_prefill_tokens=queued) for queued in (100, 1000)]
    assert crowding_s(idle, at_work, 400) == pytest.approx((0.4 + 0.1 + 0.4) / 2)
    assert crowding_s(idle, at_work[:1], 400) == 0.0  # a core is free
    assert crowding_s(changed(idle, engines_at_once=1), at_work[:1], 400) == pytest.approx(0.5)
    assert crowding_s(changed(idle, engines_at_once=1), [], 400) == 0.0


def test_the_wait_for_a_full_engine_follows_its_mean_decode_time() -> None:
    full = load(waiting=1, running=8, max_sequences=8, decode_s=4.0)
    assert wait_s(full, 100) == pytest.approx(2 * 4.0 / 8)
    assert wait_s(changed(full, waiting=0, running=7), 100) == 0.0
    assert wait_s(changed(full, max_sequences=0), 100) == 0.0
    # meanwhile the prompts ahead are prefilled
    assert wait_s(changed(full, queued_prefill_tokens=500), 100) == pytest.approx(1.0)
    assert wait_s(changed(full, queued_prefill_tokens=1500), 100) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"running": 8, "decode_s": 4.0}, 25.0),  # both replicas end 4 of 100 sequences per second
        ({"running": 8, "decode_s": 0.1}, 10.0),  # prompts take longer than answers
        ({"running": 8}, 10.0),  # no answer has ended yet
        ({"decode_s": 4.0}, 10.0),  # all of them are still prefilling
    ],
)
def test_a_queue_before_full_replicas_waits_for_running_sequences_or_for_its_prompts(
    fields: dict[str, Any], expected: float
) -> None:
    replicas = [load(prefill_rate=1000.0, **fields) for _ in range(2)]
    assert queue_s(replicas, 100, 20_000) == pytest.approx(expected)


def test_the_wait_is_zero_with_an_empty_queue_and_room_in_the_cache() -> None:
    assert wait_s(load(inter_token_latency=0.02, running=3), 1000) == 0.0
    assert wait_s(load(queued_prefill_tokens=1), 1000) == pytest.approx(0.001)


@given(any_load, tokens, tokens, tokens, tokens, st.floats(0, 1))
def test_a_score_never_rises_with_what_is_cached(
    replica: ReplicaLoad, prompt: int, cached: int, more: int, popular: int, price: float
) -> None:
    waits_s = wait_s(replica, prompt)
    less, better = (
        score(replica, waits_s, prompt, c, popular, price) for c in (cached, cached + more)
    )
    assert 0 <= better <= less + 1e-9 * less


def trained_correction(
    slope: float, offset: float, times: int, noise: float = 0.0
) -> TtftCorrection:
    correction, rng = TtftCorrection(), random.Random(1)
    for _ in range(times):
        predicted = rng.uniform(0, 2)
        observed = (slope * predicted + offset) * rng.lognormvariate(0, noise)
        correction.observe(predicted, observed)
    return correction


def test_a_new_correction_changes_nothing() -> None:
    assert TtftCorrection().apply(1.5) == 1.5
    assert TtftCorrection().error is None
    assert TtftCorrection().bias is None


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize(("slope", "offset"), [(1, 0), (3, 0.05), (0.3, 0.2), (8, 0), (1, 2)])
def test_the_correction_learns_the_line_through_the_observations(
    slope: float, offset: float, noise: float
) -> None:
    learned = trained_correction(slope, offset, 1000, noise)
    for predicted in (0.2, 1.0, 1.8):
        expected = slope * predicted + offset
        assert learned.apply(predicted) == pytest.approx(expected, rel=0.02 + noise)


def test_the_time_per_prompt_token_is_learned_in_addition_to_the_line() -> None:
    """Cached or not: two prompts of which as much is computed are not equally soon answered."""
    correction, rng = TtftCorrection(), random.Random(3)
    for _ in range(600):
        predicted, prompt = rng.uniform(0, 0.5), rng.randint(10, 4000)
        observed = (2 * predicted + 5e-5 * prompt + 0.02) * rng.lognormvariate(0, 0.02)
        correction.observe(predicted, observed, prompt_tokens=prompt)
    for predicted, prompt in ((0.1, 100), (0.0, 4000), (0.4, 4000)):
        expected = 2 * predicted + 5e-5 * prompt + 0.02
        assert correction.apply(predicted, prompt_tokens=prompt) == pytest.approx(expected, rel=0.1)


def test_an_error_counts_relative_to_the_observed_ttft() -> None:
    """Slow first tokens, which scatter by more seconds, leave the quick ones' predictions right."""
    correction, rng = TtftCorrection(), random.Random(4)
    for _ in range(600):
        predicted = rng.choice((0.02, 3.0))
        observed = predicted + 0.01 if predicted < 1 else predicted * rng.choice((0.6, 1.4))
        correction.observe(predicted, observed)
    assert correction.apply(0.02) == pytest.approx(0.03, rel=0.05)


def test_the_prediction_error_uses_the_prediction_made_before_the_observation() -> None:
    correction = TtftCorrection()
    correction.observe(2.0, 1.0)
    assert correction.error == pytest.approx(1.0)
    assert correction.bias == pytest.approx(1.0)
    correction = TtftCorrection()
    correction.observe(1.0, 2.0)
    assert correction.error == pytest.approx(0.5)
    assert correction.bias == pytest.approx(-0.5)


def test_unverified_predictions_have_a_margin_until_they_prove_accurate() -> None:
    correction = TtftCorrection()
    assert correction.expected_error == UNJUDGED_ERROR
    correction.observe(1.0, 1.0)
    assert 0.9 * UNJUDGED_ERROR < correction.expected_error < UNJUDGED_ERROR
    for _ in range(2 * MEMORY):
        correction.observe(1.0, 1.0)
    assert correction.expected_error < 0.2 * UNJUDGED_ERROR


def test_the_prediction_error_decreases_once_the_line_is_learned() -> None:
    learned = trained_correction(3, 0.1, 1000)
    assert learned.error is not None and learned.error < 0.02
    assert learned.bias is not None and abs(learned.bias) < 0.02


def test_one_outlier_moves_little() -> None:
    learned = trained_correction(1, 0, 500)
    learned.observe(1.0, 300.0)
    assert learned.apply(1.0) == pytest.approx(1.0, rel=0.05)


def test_a_lasting_change_is_followed() -> None:
    learned, rng = trained_correction(1, 0, 500), random.Random(2)
    for _ in range(400):
        predicted = rng.uniform(0, 2)
        learned.observe(predicted, 4 * predicted)
    assert learned.apply(1.0) == pytest.approx(4.0, rel=0.1)


def test_equal_predictions_do_not_change_the_slope() -> None:
    correction = TtftCorrection()
    for _ in range(200):
        correction.observe(1.0, 1.5)
    assert correction.slope == pytest.approx(1.0, rel=0.05)
    assert correction.apply(1.0) == pytest.approx(1.5, rel=0.02)


@given(
    st.lists(st.tuples(any_float, any_float, tokens, st.integers(0, 3)), max_size=50),
    seconds,
    seconds,
    tokens,
)
def test_corrections_never_change_the_order_of_replicas(
    observations: list[tuple[float, float, int, int]], one: float, other: float, prompt: int
) -> None:
    correction = TtftCorrection()
    for predicted, observed, prompt_tokens, working in observations:
        correction.observe(predicted, observed, working, prompt_tokens)
    assert MIN_SLOPE <= correction.slope <= MAX_SLOPE
    assert 0 <= correction.offset < math.inf
    assert 0 <= correction.token_s < math.inf
    less, more = (correction.apply(of, prompt_tokens=prompt) for of in sorted((one, other)))
    assert 0 <= less <= more < math.inf
    assert correction.error is None or 0 <= correction.error <= 10


# Seconds per token. Computing one takes 1 ms.
FAST = TierLoadS(host=0.0001, disk=0.0005, peer=0.0003)


@pytest.mark.parametrize(
    ("tokens", "token_s", "names"),
    [
        (TierTokens(100, 100, 100), FAST, "peer disk host compute"),
        (TierTokens(100, 100, 100), FAST._replace(peer=0.0006), "disk peer host compute"),
        (TierTokens(0, 100, 40), FAST, "disk peer compute"),
        (TierTokens(0, 40, 100), FAST._replace(disk=0.0001), "peer disk compute"),
        (TierTokens(100, 0, 100), FAST._replace(peer=0.002), "host compute peer"),
        (TierTokens(100, 100, 100), TierLoadS(0.002, 0.003, 0.003), "compute host disk peer"),
        (TierTokens(peer=100), FAST._replace(peer=0.001), "compute peer"),  # it takes as long
        (TierTokens(disk=100, peer=50), TierLoadS(0.0, 0.0005, 0.0), "peer disk compute"),  # too
    ],
)
def test_the_fastest_way_to_a_prefix_is_the_first(
    tokens: TierTokens, token_s: TierLoadS, names: str
) -> None:
    ways = tier_ways(load(prefill_rate=1000.0), 0.0, tokens, token_s)
    assert [way.name for way in ways] == names.split()
    for way in ways:
        assert way.host_s == (tokens.host * token_s.host if way.name != "compute" else 0.0)
        assert way.disk_s == (tokens.disk * token_s.disk if way.name == "disk" else 0.0)
        assert way.peer_s == (tokens.peer * token_s.peer if way.name == "peer" else 0.0)


def elsewhere(ready_s: float, *, always: bool = False) -> Elsewhere:
    return Elsewhere("p0", "10.0.0.9:5600", 100, ready_s, always)


@pytest.mark.parametrize(
    ("ready_s", "queued", "always", "name"),
    [
        (0.05, 100, False, "prefill"),  # 0.05 + 0.03 before the queue's end, 0.1
        (0.05, 0, False, "prefill"),  # 0.08 instead of 0.1
        (0.07, 0, False, "compute"),  # as long
        (0.15, 0, False, "compute"),
        (0.15, 0, True, "prefill"),
    ],
)
def test_a_prompt_is_prefilled_elsewhere_if_that_takes_less_time(
    ready_s: float, queued: int, always: bool, name: str
) -> None:
    busy = load(prefill_rate=1000.0)
    where = elsewhere(ready_s, always=always)
    ways = tier_ways(busy, queued / 1000.0, TierTokens(prefill=100), FAST, where)
    assert ways[0].name == name
    prefilled = next(way for way in ways if way.name == "prefill")
    assert (prefilled.loaded, prefilled.ready_s) == (100, ready_s)
    assert prefilled.prefill_s == pytest.approx(0.03)
    assert prefilled.load_s == pytest.approx(ready_s + 0.03)
    assert prefilled.ends_s == pytest.approx(max(queued / 1000.0, ready_s + 0.03))


def test_a_pull_waits_for_earlier_pulls_and_a_load_from_the_host_only_for_their_copies() -> None:
    queued = load(queued_host_tokens=100, queued_disk_tokens=10, queued_peer_tokens=1000)
    assert tier_wait_s(queued, FAST) == pytest.approx(1110 * 0.0001)
    assert tier_wait_s(queued, FAST, pulls=True) == pytest.approx(110 * 0.0001 + 1000 * 0.0003)
    reading_s = 1100 * 0.0001 + 10 * 0.0005
    assert tier_wait_s(queued, FAST, reads_disk=True) == pytest.approx(reading_s)


@pytest.mark.parametrize(("queued", "pulls"), [(0, True), (200, True), (300, False)])
def test_a_request_computes_behind_a_queue_of_pulls(queued: int, pulls: bool) -> None:
    busy = load(prefill_rate=1000.0, queued_peer_tokens=queued)
    [first, _] = tier_ways(busy, 0.0, TierTokens(peer=100), FAST)
    assert (first.name == "peer") == pulls


def test_the_next_best_way_of_a_pull_is_timed() -> None:
    pulled, hosted, _ = tier_ways(load(prefill_rate=1000.0), 0.0, TierTokens(100, 0, 100), FAST)
    assert hosted.ends_s - pulled.ends_s == pytest.approx(100 * (0.001 - 0.0003))


def test_a_pull_takes_the_mean_of_the_measured_rates_and_the_load_from_the_host() -> None:
    loads = [
        load(host_load_rate=1000.0, peer_load_rate=500.0),
        load(peer_load_rate=250.0),
        load(),
    ]
    assert tier_load_s(loads).peer == pytest.approx(0.001 + (0.002 + 0.004) / 2)


def test_an_unmeasured_pull_is_expected_to_be_three_times_as_fast_as_computing() -> None:
    loads = [load(prefill_rate=1000.0, host_load_rate=1000.0)]
    assert tier_load_s(loads).peer == pytest.approx(0.001 + 0.001 / 3)
