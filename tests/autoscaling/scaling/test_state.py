"""What the autoscaler remembers, stored as JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaling.scaling.forecast import DemandSample, History
from autoscaling.scaling.holding import ReplicaHold
from autoscaling.scaling.state import State

STATE = State(
    now=7.0,
    demand=3,
    history=History(
        (
            DemandSample(1.0, 2.0, 0.0, 1.0, 10.0, 5.0),
            DemandSample(2.0, 4.0, 0.0, 2.0, 20.0, 9.0, 30.0, 3.0),
        ),
        changed_at=1.0,
    ),
    levels=(ReplicaHold(7.0, 30.0), ReplicaHold(6.0, 100.0)),
    promoted_from=2,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*vars(STATE)]), inner)
    ),
    max_leaves=10,
)


def test_the_state_survives_a_json_round_trip() -> None:
    assert State.from_dict(json.loads(json.dumps(STATE.to_dict(), allow_nan=False))) == STATE


@given(json_values)
def test_an_invalid_stored_state_is_replaced_by_an_empty_one(stored: Any) -> None:
    assert State.from_dict(stored) == State()


@given(st.sampled_from([*STATE.to_dict()]), json_values)
def test_an_invalid_field_never_raises(name: str, value: Any) -> None:
    state = State.from_dict({**STATE.to_dict(), name: value})
    json.dumps(state.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", [*STATE.to_dict()])
def test_a_state_without_one_of_its_fields_is_discarded(name: str) -> None:
    stored = STATE.to_dict()
    del stored[name]
    assert State.from_dict(stored) == State()


def test_a_state_with_samples_out_of_order_is_discarded() -> None:
    stored = STATE.to_dict()
    stored["history"]["samples"].reverse()
    assert State.from_dict(stored) == State()
