"""Which tenant gets one request at a time, after engines were lost with its requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.checks.likely_causes import Loss, LossKind, is_likely_cause

TOGETHER_S = 5.0
NEARBY, FATAL, MEMORY = LossKind


def losses(*told: str) -> list[Loss]:
    """Each: tenant, kind, replica, request, and seconds."""
    kinds = {"nearby": NEARBY, "fatal": FATAL, "memory": MEMORY}
    found = []
    for line in told:
        owner, kind, replica, request, *at = line.split()
        until = float(at[0]) if at else 0.0
        names = owner.encode(), replica.encode(), request.encode()
        found.append(Loss(names[0], kinds[kind], names[1], names[2], until))
    return found


@pytest.mark.parametrize(
    ("told", "is_cause"),
    [
        ([], False),
        # engines are lost, and the requests continue elsewhere
        (["red nearby r0 a"], False),
        (["red nearby r0 a", "red nearby r1 b", "red nearby r2 c"], False),
        # one replica without memory is enough, unless it also had another tenant's request
        (["red memory r0 a"], True),
        (["red memory r0 a", "red nearby r0 b"], True),
        (["red memory r0 a", "blue nearby r0 b"], False),
        (["red memory r0 a", "blue memory r0 b"], False),
        (["red memory r0 a", "blue nearby r1 b"], True),
        # a request that lost two engines, alone in both
        (["red fatal r0 a", "red fatal r1 a"], True),
        (["red fatal r0 a", "red nearby r0 a", "red fatal r1 a", "red nearby r1 a"], True),
        (["red fatal r0 a"], False),
        # other requests ran there: an operator may have killed both engines of a busy pool
        (["red fatal r0 a", "red nearby r0 b", "red fatal r1 a"], False),
        (["red fatal r0 a", "red fatal r1 a", "red fatal r0 b", "red fatal r1 b"], False),
        (["red fatal r0 a", "red fatal r1 a", "blue nearby r1 c"], False),
        # at two times, whatever changed in the request
        (["red fatal r0 a 0", "red nearby r0 b 0", "red fatal r1 c 9", "red nearby r1 d 9"], True),
        (["red fatal r0 a 0", "red nearby r0 b 0", "red fatal r1 c 4", "red nearby r1 d 4"], False),
        (["red fatal r0 a 0", "red fatal r1 c 9", "blue nearby r1 d 9"], False),
    ],
)
def test_a_tenant_is_throttled_only_if_it_likely_caused_a_death(
    told: list[str], is_cause: bool
) -> None:
    assert is_likely_cause(b"red", losses(*told), TOGETHER_S) == is_cause


LOSSES = st.builds(
    Loss,
    owner=st.sampled_from([b"red", b"blue", b"green"]),
    kind=st.sampled_from(list(LossKind)),
    replica=st.sampled_from([b"r0", b"r1", b"r2"]),
    request=st.sampled_from([b"a", b"b", b"c"]),
    until=st.floats(0, 100),
)


@given(st.lists(LOSSES, max_size=12))
def test_two_tenants_are_never_throttled_for_the_same_death(told: list[Loss]) -> None:
    for owner in (b"red", b"blue", b"green"):
        if is_likely_cause(owner, told, TOGETHER_S):
            mine = {loss.replica for loss in told if loss.owner == owner}
            others = {loss.replica for loss in told if loss.owner != owner}
            assert mine - others


@given(st.lists(LOSSES, max_size=12), LOSSES)
def test_a_request_of_another_tenant_never_makes_a_tenant_the_cause(
    told: list[Loss], more: Loss
) -> None:
    if more.owner != b"red" and not is_likely_cause(b"red", told, TOGETHER_S):
        assert not is_likely_cause(b"red", [*told, more], TOGETHER_S)
