"""When the breaker opens and closes."""

from hypothesis import given
from hypothesis import strategies as st

from router.index.breaker import FAILURES_TO_OPEN, PROBES_TO_CLOSE, Breaker


def opened() -> Breaker:
    breaker = Breaker()
    for at in range(FAILURES_TO_OPEN):
        breaker.failed(at, at)
    assert breaker.is_open
    return breaker


def test_consecutive_failures_open_the_breaker_and_are_reported_once() -> None:
    breaker = Breaker()
    assert [breaker.failed(at, at) for at in range(5)] == [False, False, True, False, False]


def test_a_success_between_failures_keeps_the_breaker_closed() -> None:
    breaker = Breaker()
    for at in range(20):
        breaker.failed(at, at)
        breaker.succeeded()
    assert not breaker.is_open


def test_one_stall_under_many_calls_is_one_failure() -> None:
    breaker = Breaker()
    for call in range(100):
        breaker.failed(began=1 + call / 1000, now=2 + call / 1000)
    assert not breaker.is_open
    breaker.failed(3, 4)
    breaker.failed(5, 6)
    assert breaker.is_open


def test_consecutive_good_probes_close_the_breaker_and_are_reported_once() -> None:
    breaker = opened()
    assert [breaker.probed(True) for _ in range(4)] == [False, True, False, False]
    assert not breaker.is_open


def test_a_bad_probe_starts_the_count_again() -> None:
    breaker = opened()
    assert not any(breaker.probed(good) for good in (True, False, True))
    assert breaker.probed(True)


def test_failures_while_the_breaker_is_open_do_not_count_once_it_is_closed() -> None:
    breaker = opened()
    breaker.failed(10, 11)
    breaker.probed(True)
    breaker.probed(True)
    breaker.failed(12, 13)
    breaker.failed(14, 15)
    assert not breaker.is_open


@given(st.lists(st.booleans()))
def test_the_breaker_opens_exactly_after_the_given_number_of_consecutive_failures(
    calls: list[bool],
) -> None:
    breaker, row, worst = Breaker(), 0, 0
    for at, good in enumerate(calls):
        if good:
            breaker.succeeded()
        else:
            breaker.failed(at, at)
        row = 0 if good else row + 1
        worst = max(worst, row)
    assert breaker.is_open == (worst >= FAILURES_TO_OPEN)


@given(st.lists(st.booleans()))
def test_the_breaker_closes_exactly_after_the_given_number_of_consecutive_good_probes(
    probes: list[bool],
) -> None:
    breaker, row, best = opened(), 0, 0
    for good in probes:
        breaker.probed(good)
        row = row + 1 if good else 0
        best = max(best, row)
    assert breaker.is_open == (best < PROBES_TO_CLOSE)
