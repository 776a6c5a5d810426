"""A canary that is worse is found at once, and one that is not is left alone."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deployments.gateway.models.canary_test import (
    KEPT_EPOCHS,
    SHARES,
    WORDS,
    CanaryRule,
    EndedRequest,
    LogWealths,
    RecentBase,
    add,
    epoch_of,
    won_by,
    worse_in,
)

RULE = CanaryRule()
Draw = Callable[[random.Random], EndedRequest]


def base_request(rng: random.Random) -> EndedRequest:
    """As of a fleet under load: times vary by tens. A fifth of the answers is cut short."""
    return EndedRequest(
        rng.lognormvariate(-1, 1),
        rng.lognormvariate(-4, 0.3),
        rng.random() < 0.002,
        "length" if rng.random() < 0.2 else "stop",
    )


def slow(by: float) -> Draw:
    def draw(rng: random.Random) -> EndedRequest:
        request = base_request(rng)
        assert request.tpot_s is not None
        return replace(request, tpot_s=by * request.tpot_s)

    return draw


def failing(share: float) -> Draw:
    def draw(rng: random.Random) -> EndedRequest:
        request = base_request(rng)
        return replace(request, failed=rng.random() < share)

    return draw


def times_of_base(rng: random.Random, requests: int) -> RecentBase:
    drawn = [base_request(rng) for _ in range(requests)]
    ttft = sorted(r.ttft_s for r in drawn if r.ttft_s is not None)
    tpot = sorted(r.tpot_s for r in drawn if r.tpot_s is not None)
    at = int(0.9 * requests)
    reasons = Counter(request.finish_reason for request in drawn)
    return RecentBase(ttft[at], tpot[at], reasons)


def requests_until_found(draw: Draw, seed: int, gateways: int = 1, most: int = 2000) -> int:
    """How many of the canary's requests it took; `most`: it was not found."""
    rng = random.Random(seed)
    base = times_of_base(rng, 100)
    won: list[LogWealths] = [{} for _ in range(gateways)]
    for number, request in enumerate(islice(_drawn(draw, rng), most)):
        epoch = number // 10
        add(won[number % gateways], won_by(request, base, RULE), epoch)
        if worse_in(won, RULE, epoch):
            return number + 1
    return most


def _drawn(draw: Draw, rng: random.Random) -> Iterator[EndedRequest]:
    while True:
        yield draw(rng)


@pytest.mark.parametrize("gateways", [1, 8])
def test_three_times_the_time_per_token_is_detected_within_twenty_requests(gateways: int) -> None:
    found = [requests_until_found(slow(3.0), seed, gateways) for seed in range(100)]
    assert max(found) <= 20


def test_an_error_rate_of_one_in_twenty_is_detected() -> None:
    found = [requests_until_found(failing(0.05), seed) for seed in range(30)]
    assert sorted(found)[15] < 300 and max(found) < 2000


def endless(rng: random.Random) -> EndedRequest:
    """Its model never ends an answer by itself."""
    return replace(base_request(rng), finish_reason="length")


def test_answers_with_another_finish_reason_are_detected() -> None:
    found = [requests_until_found(endless, seed) for seed in range(30)]
    assert max(found) <= 30


@pytest.mark.parametrize("unusual", [0.0, 0.02, 0.2, 0.5])
def test_finish_reasons_that_the_base_also_has_do_not_count_against_a_canary(
    unusual: float,
) -> None:
    def same_kind(rng: random.Random) -> EndedRequest:
        return EndedRequest(None, None, False, "length" if rng.random() < unusual else "stop")

    wrong = 0
    for seed in range(40):
        rng, won = random.Random(seed), [LogWealths()]
        base = RecentBase(None, None, Counter(same_kind(rng).finish_reason for _ in range(100)))
        for number in range(1000):
            add(won[0], won_by(same_kind(rng), base, RULE), number // 10)
        wrong += worse_in(won, RULE, 100) is not None
    assert wrong <= 1


def test_a_canary_that_becomes_worse_late_is_detected() -> None:
    """After thousands of good requests, by which a single bettor would have lost all."""
    drawn = 0

    def late(rng: random.Random) -> EndedRequest:
        nonlocal drawn
        drawn += 1
        return (slow(3.0) if drawn > 1500 else base_request)(rng)

    for seed in range(5):
        drawn = 0
        assert 1500 < requests_until_found(late, seed) < 1540


def test_a_canary_that_always_fails_is_detected_at_once() -> None:
    assert max(requests_until_found(failing(1.0), seed) for seed in range(20)) <= 4


def test_wealth_from_an_epoch_that_another_gateway_has_merged_is_left_out() -> None:
    """The other gateway's losses of that epoch are missing in it, so it proves nothing."""
    merged, won, epoch = 3, 30.0, 3 + KEPT_EPOCHS
    idle: LogWealths = {"errors": {merged: won}}
    busy: LogWealths = {"errors": {merged: -won}}
    add(busy, {"errors": 0.0}, epoch)
    assert busy["errors"] == {0: -won, epoch: 0.0}
    assert worse_in([idle, busy], RULE, epoch) is None
    # clocks of gateways differ by up to two epochs
    assert worse_in([idle, busy], RULE, epoch - 1) is None
    assert worse_in([idle, busy], RULE, epoch - 2) is None
    recent: LogWealths = {"errors": {merged + 3: won}}
    assert worse_in([recent], RULE, epoch) is not None
    # the first bettor has played from the start, so nothing is missing in its wealth
    first: LogWealths = {"errors": {0: won}}
    assert worse_in([first], RULE, 9 * KEPT_EPOCHS) is not None


def test_an_epoch_is_five_seconds_from_the_canarys_begin() -> None:
    assert [epoch_of(100.0, now) for now in (99.0, 100.0, 104.9, 105.0, 160.0)] == [0, 0, 0, 1, 12]


def test_old_epochs_are_merged_into_the_first_one_without_adding_wealth() -> None:
    won: LogWealths = {}
    for epoch in (1, 2, KEPT_EPOCHS, KEPT_EPOCHS + 1):
        add(won, {"ttft": 0.5, "errors": -0.25}, epoch)
    assert won["ttft"] == {0: 0.5, 2: 0.5, KEPT_EPOCHS: 0.5, KEPT_EPOCHS + 1: 0.5}
    add(won, {"ttft": 0.5}, KEPT_EPOCHS + 2)
    assert won["ttft"][0] == 1.0 and 2 not in won["ttft"]
    assert won["errors"] == {0: -0.25, 2: -0.25, KEPT_EPOCHS: -0.25, KEPT_EPOCHS + 1: -0.25}


@pytest.mark.parametrize(("beyond", "is_worse"), [(0.1, True), (-0.1, False)])
def test_a_canary_is_worse_once_its_wealth_reaches_the_limit(beyond: float, is_worse: bool) -> None:
    # half of the wealth bets from the first epoch on
    won: LogWealths = {"ttft": {0: RULE.log_limit("ttft") + math.log(2) + beyond}}
    assert (worse_in([won], RULE, 0) is not None) == is_worse


def test_the_worst_metric_is_named_even_if_other_metrics_are_better() -> None:
    won: LogWealths = {"ttft": {0: 20.0}, "errors": {0: 40.0}, "tpot": {0: -90.0}}
    assert worse_in([won], RULE, 0) == "rate of errors"


changes = st.tuples(
    st.sampled_from(["ttft", "errors", "reasons"]),
    st.integers(0, 2),
    st.integers(0, KEPT_EPOCHS),
    st.floats(-8.0, 8.0),
)


@given(st.lists(changes, min_size=1, max_size=12))
@example([("errors", 0, 3, 30.0), ("errors", 1, 0, -30.0), ("errors", 1, KEPT_EPOCHS, 0.0)])
def test_merged_epochs_never_make_a_canary_look_worse(
    played: list[tuple[str, int, int, float]],
) -> None:
    """Otherwise it would be taken back by chance more often than `alpha` allows."""
    gateways: list[LogWealths] = [{}, {}, {}]
    unmerged: dict[str, dict[int, float]] = {}
    epoch = 0
    for name, gateway, later, log_growth in played:
        epoch += later
        add(gateways[gateway], {name: log_growth}, epoch)
        by_epoch = unmerged.setdefault(name, {})
        by_epoch[epoch] = by_epoch.get(epoch, 0.0) + log_growth
        word = worse_in(gateways, RULE, epoch)
        if word is not None:
            (fact,) = (fact for fact in unmerged if WORDS[fact] == word)
            assert log_wealth(unmerged[fact]) >= RULE.log_limit(fact) - 1e-9


def log_wealth(by_epoch: dict[int, float]) -> float:
    """Return the logarithm of the wealth of bettors that begin in every epoch, none left out."""
    wealth = sum(
        math.exp(sum(won for at, won in by_epoch.items() if at >= start))
        / ((start + 1) * (start + 2))
        for start in range(max(by_epoch) + 1)
    )
    return math.log(wealth)


def test_the_shares_of_all_bets_add_up_to_alpha() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)
    chances = [math.exp(-RULE.log_limit(name)) for name in SHARES]
    assert sum(chances) == pytest.approx(RULE.alpha)
    assert SHARES.keys() == WORDS.keys()


@pytest.mark.parametrize(("times", "is_slower"), [(1.0, False), (1.25, False), (1.26, True)])
def test_a_time_is_slow_a_quarter_above_the_bases_percentile(times: float, is_slower: bool) -> None:
    base = RecentBase(2.0, 0.1)
    won = won_by(EndedRequest(2.0 * times, 0.1 * times, False), base, RULE)
    assert (won["ttft"] > 0, won["tpot"] > 0) == (is_slower, is_slower)


@pytest.mark.hypothesis
def test_a_canary_that_equals_its_base_is_not_aborted() -> None:
    """`make fuzz` and `make bench-canary` play more of them."""
    plays = settings().max_examples // 5
    wrong = sum(requests_until_found(base_request, seed, most=1000) < 1000 for seed in range(plays))
    assert wrong <= plays // 40


def test_without_requests_to_the_base_only_errors_are_compared() -> None:
    request = EndedRequest(1.0, 1.0, False)
    assert won_by(request, RecentBase(None, None), RULE).keys() == {"errors"}
    failed = EndedRequest(None, None, True, "stop")
    assert won_by(failed, RecentBase(1.0, 1.0, {"stop": 49}), RULE).keys() == {"errors"}
    assert worse_in([], RULE, 0) is None


def test_an_unknown_finish_reason_is_not_compared() -> None:
    base = RecentBase(None, None, {"stop": 100})
    assert won_by(EndedRequest(None, None, False, ""), base, RULE).keys() == {"errors"}
    assert won_by(EndedRequest(None, None, False, "stop"), base, RULE)["reasons"] < 0
    assert won_by(EndedRequest(None, None, False, "length"), base, RULE)["reasons"] > 0
