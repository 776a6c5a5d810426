"""A canary goes up by its steps, back at once, and stays where it ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.models.canary_state import (
    CanaryPlan,
    CanaryState,
    first,
    is_of_later_settings,
    next_state,
)

PLAN = CanaryPlan("a", (0.05, 0.25, 1.0), step_s=60.0, requests=10)
BEGUN = first(PLAN, None, 100.0)


def test_a_canary_begins_with_its_first_step() -> None:
    assert (BEGUN.status, BEGUN.share(PLAN), BEGUN.version) == ("running", 0.05, 1)
    other = first(CanaryPlan("b", (0.5,), 1.0, 1), BEGUN, 200.0)
    assert (other.id, other.version) == ("b", 2)


@pytest.mark.parametrize(
    ("requests", "now", "step"), [(9, 160.0, 0), (10, 159.0, 0), (10, 160.0, 1), (99, 999.0, 1)]
)
def test_a_step_lasts_for_its_duration_and_its_requests(
    requests: int, now: float, step: int
) -> None:
    assert (next_state(BEGUN, PLAN, None, requests, now) or BEGUN).step == step


def test_each_later_step_lasts_for_its_duration_and_its_requests() -> None:
    second = next_state(BEGUN, PLAN, None, 17, 170.0)
    assert second is not None and (second.step, second.requests) == (1, 17)
    assert next_state(second, PLAN, None, 26, 999.0) is None
    assert next_state(second, PLAN, None, 99, 229.0) is None
    third = next_state(second, PLAN, None, 27, 230.0)
    assert third is not None and (third.step, third.requests) == (2, 27)
    assert next_state(third, PLAN, None, 36, 999.0) is None
    promoted = next_state(third, PLAN, None, 37, 290.0)
    assert promoted is not None and promoted.status == "promoted"


@pytest.mark.parametrize(
    ("begun", "now", "later"),
    [
        (101.0, 102.0, True),
        (100.0, 102.0, False),
        (99.0, 102.0, False),
        (101.0, 160.9, True),
        (101.0, 161.0, False),
    ],
)
def test_an_unknown_canary_belongs_to_later_settings_only_shortly_after_its_start(
    begun: float, now: float, later: bool
) -> None:
    state = CanaryState("b", 3, "running", 0, begun, begun)
    assert is_of_later_settings(state, adopted=100.0, now=now) == later


def test_a_step_beyond_the_plan_counts_as_the_last_one() -> None:
    state = CanaryState("a", 7, "running", 9, 90.0, 100.0)
    assert state.share(PLAN) == 1.0


def test_a_canary_is_promoted_after_its_last_step() -> None:
    state, requests, now = BEGUN, 0, 100.0
    shares = []
    while state.status == "running":
        shares.append(state.share(PLAN))
        requests, now = requests + 10, now + 60
        found = next_state(state, PLAN, None, requests, now)
        assert found is not None and found.version == state.version + 1
        state = found
    assert shares == [0.05, 0.25, 1.0]
    assert (state.status, state.share(PLAN)) == ("promoted", 1.0)
    assert next_state(state, PLAN, "tpot", 999, 1e9) is None


@given(st.sampled_from(["ttft", "tpot", "errors"]), st.integers(0, 2), st.floats(100, 1e9))
def test_a_worse_canary_gets_no_more_requests(what: str, step: int, now: float) -> None:
    state = CanaryState("a", 7, "running", step, 90.0, 100.0)
    ended = next_state(state, PLAN, what, 10**6, now)
    assert ended is not None
    assert (ended.status, ended.share(PLAN), ended.version) == ("aborted", 0.0, 8)
    assert what in ended.why
    assert next_state(ended, PLAN, None, 10**6, now + 1e6) is None
