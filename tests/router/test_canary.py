"""A canary that is worse is found at once, and one that is not is left alone."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import pytest

from router.canary import CanaryRule, EndedRequest, LogWealths, RecentBase, add, won_by, worse_in

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
def test_three_times_the_time_per_token_is_found_within_twenty_requests(gateways: int) -> None:
    found = [requests_until_found(slow(3.0), seed, gateways) for seed in range(100)]
    assert max(found) <= 20


def test_one_error_in_twenty_is_found() -> None:
    found = [requests_until_found(failing(0.05), seed) for seed in range(30)]
    assert sorted(found)[15] < 300 and max(found) < 2000


def endless(rng: random.Random) -> EndedRequest:
    """Its model never ends an answer by itself."""
    return replace(base_request(rng), finish_reason="length")


def test_answers_that_end_for_another_reason_are_found() -> None:
    found = [requests_until_found(endless, seed) for seed in range(30)]
    assert max(found) <= 30


@pytest.mark.parametrize("unusual", [0.0, 0.02, 0.2, 0.5])
def test_reasons_are_no_fault_where_the_base_has_them_too(unusual: float) -> None:
    def alike(rng: random.Random) -> EndedRequest:
        return EndedRequest(None, None, False, "length" if rng.random() < unusual else "stop")

    wrong = 0
    for seed in range(40):
        rng, won = random.Random(seed), [LogWealths()]
        base = RecentBase(None, None, Counter(alike(rng).finish_reason for _ in range(100)))
        for number in range(1000):
            add(won[0], won_by(alike(rng), base, RULE), number // 10)
        wrong += worse_in(won, RULE, 100) is not None
    assert wrong <= 1


def test_one_that_becomes_worse_late_is_found() -> None:
    """After thousands of good requests, by which a single bettor would have lost all."""
    drawn = 0

    def late(rng: random.Random) -> EndedRequest:
        nonlocal drawn
        drawn += 1
        return (slow(3.0) if drawn > 1500 else base_request)(rng)

    for seed in range(5):
        drawn = 0
        assert 1500 < requests_until_found(late, seed) < 1540


def test_a_canary_that_always_fails_is_found_at_once() -> None:
    assert max(requests_until_found(failing(1.0), seed) for seed in range(20)) <= 4


def test_one_that_is_as_its_base_is_left_alone() -> None:
    """`make bench-canary` plays more of them."""
    wrong = sum(requests_until_found(base_request, seed, most=1000) < 1000 for seed in range(40))
    assert wrong <= 1


def test_nothing_is_known_of_a_base_without_requests() -> None:
    request = EndedRequest(1.0, 1.0, False)
    assert won_by(request, RecentBase(None, None), RULE).keys() == {"errors"}
    failed = EndedRequest(None, None, True, "stop")
    assert won_by(failed, RecentBase(1.0, 1.0, {"stop": 49}), RULE).keys() == {"errors"}
    assert worse_in([], RULE, 0) is None
