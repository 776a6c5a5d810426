"""A canary goes up by its steps, back at once, and stays where it ended."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.canary_state import CanaryPlan, CanaryState, first, next_state

PLAN = CanaryPlan("a", (0.05, 0.25, 1.0), step_s=60.0, requests=10)
BEGUN = first(PLAN, None, 100.0)


def test_it_begins_with_its_first_step() -> None:
    assert (BEGUN.status, BEGUN.share(PLAN), BEGUN.version) == ("running", 0.05, 1)
    other = first(CanaryPlan("b", (0.5,), 1.0, 1), BEGUN, 200.0)
    assert (other.id, other.version) == ("b", 2)


@pytest.mark.parametrize(
    ("requests", "now", "step"), [(9, 160.0, 0), (10, 159.0, 0), (10, 160.0, 1), (99, 999.0, 1)]
)
def test_a_step_takes_its_time_and_its_requests(requests: int, now: float, step: int) -> None:
    assert (next_state(BEGUN, PLAN, None, requests, now) or BEGUN).step == step


def test_behind_the_last_step_it_is_promoted() -> None:
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
def test_one_that_is_worse_gets_nothing_more_at_once(what: str, step: int, now: float) -> None:
    state = CanaryState("a", 7, "running", step, 90.0, 100.0)
    ended = next_state(state, PLAN, what, 10**6, now)
    assert ended is not None
    assert (ended.status, ended.share(PLAN), ended.version) == ("aborted", 0.0, 8)
    assert what in ended.why
    assert next_state(ended, PLAN, None, 10**6, now + 1e6) is None
