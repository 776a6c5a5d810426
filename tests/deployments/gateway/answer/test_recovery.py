"""What follows a try that has not ended well: a table, and laws for every sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.answer.recovery import (
    GONE_AGAIN_S,
    NOTICED_S,
    CannotContinue,
    Course,
    DecideAgain,
    Event,
    GiveUp,
    Leaves,
    NoReplica,
    NotPlaced,
    Step,
    TryAgain,
    TryFailed,
    TryThere,
    next_step,
)

LOST = TryFailed("a", at=1.0)
REFUSED = TryFailed("a", at=1.0, was_lost=False)
UNREACHED = TryFailed("a", at=1.0, was_lost=False, was_reached=False)
LEAVING = replace(LOST, is_leaving=True)
NEW = Course(retries=1)
ONCE = Course(1, 1, frozenset("b"), frozenset("b"), 6.0)
A, AB = frozenset("a"), frozenset("ab")
HAS, CAN = True, True


@pytest.mark.parametrize(
    ("course", "event", "client_has_bytes", "can_continue", "step"),
    [
        # before the client has anything, a retry begins anew
        (NEW, LOST, False, False, TryAgain(A)),
        (NEW, REFUSED, False, False, TryAgain(A)),
        # the known part of the answer is not computed twice
        (NEW, LOST, False, CAN, TryAgain(A, continues=True)),
        (NEW, LOST, HAS, CAN, TryAgain(A, continues=True)),
        # a client never gets the beginning again
        (NEW, LOST, HAS, False, GiveUp()),
        # the last try
        (ONCE, LOST, False, False, GiveUp(is_fatal=True)),
        (ONCE, LOST, HAS, CAN, GiveUp(is_fatal=True)),
        (ONCE, REFUSED, False, False, GiveUp()),
        (ONCE, UNREACHED, False, False, GiveUp()),
        # a replica that leaves costs no try, once
        (ONCE, LEAVING, HAS, CAN, TryAgain(AB, continues=True)),
        (replace(ONCE, failed=AB), LEAVING, HAS, CAN, GiveUp(is_fatal=True)),
        # Ray Serve has not noticed yet that the replica is gone
        (replace(ONCE, failed=AB), UNREACHED, False, False, TryAgain(AB, wait_s=GONE_AGAIN_S)),
        (replace(ONCE, failed=AB, noticed_at=0.5), UNREACHED, False, False, GiveUp()),
        (replace(ONCE, failed=AB), REFUSED, False, False, GiveUp()),
        # the engine that was asked cannot
        (ONCE, CannotContinue(), False, False, TryAgain(frozenset("b"))),
        (ONCE, CannotContinue(), HAS, False, GiveUp()),
        # no replica takes it
        (NEW, NotPlaced(), False, False, GiveUp()),
        (NEW, NotPlaced(), HAS, CAN, GiveUp()),
        (NEW, NoReplica(), False, False, DecideAgain()),
        (ONCE, NoReplica(), HAS, CAN, GiveUp()),
        # it goes on at another engine
        (ONCE, Leaves(), HAS, CAN, TryThere()),
        (NEW, Leaves(), False, False, TryThere()),
    ],
)
def test_each_failed_try_has_its_next_step(
    course: Course, event: Event, client_has_bytes: bool, can_continue: bool, step: Step
) -> None:
    assert next_step(course, event, client_has_bytes, can_continue)[1] == step


FAILURES = st.builds(
    TryFailed,
    st.sampled_from("abcdef"),
    st.floats(0, 20),
    was_lost=st.booleans(),
    was_reached=st.booleans(),
    is_leaving=st.booleans(),
)
EVENTS = FAILURES | st.sampled_from([CannotContinue(), Leaves(), NoReplica(), NotPlaced()])
CASES = st.lists(st.tuples(EVENTS, st.booleans(), st.booleans()), min_size=1, max_size=30)


@given(st.integers(0, 4), CASES)
def test_the_laws_of_every_course(retries: int, cases: list[tuple[Event, bool, bool]]) -> None:
    course = Course(retries)
    for event, client_has_bytes, can_continue in cases:
        before = course
        course, step = next_step(before, event, client_has_bytes, can_continue)
        assert course.retries == retries
        assert before.tries <= course.tries <= before.tries + 1
        assert course.lost <= course.failed
        assert before.failed <= course.failed
        if client_has_bytes:  # never the beginning again
            assert not isinstance(step, DecideAgain)
            assert not isinstance(step, TryAgain) or (step.continues and can_continue)
        if isinstance(step, TryAgain):
            assert step.avoid == course.failed
        if isinstance(event, TryFailed):
            first = event.replica_id not in before.failed
            assert not (event.is_leaving and first) or course.tries == before.tries
            assert not (first and not event.is_leaving) or course.tries == before.tries + 1
            assert event.replica_id in course.failed
        else:
            assert course == before
        if isinstance(step, GiveUp):
            assert not step.is_fatal or len(course.lost) == retries + 1
            break
        assert course.tries <= retries


@given(st.lists(FAILURES, min_size=1, max_size=60), st.integers(0, 4))
def test_a_request_without_an_answer_ends(failures: list[TryFailed], retries: int) -> None:
    """Each replica may leave once. Beyond that only those that Ray Serve has not missed are free,
    and those for a while."""
    course, at = Course(retries), 0.0
    for failure in failures:
        course, step = next_step(course, replace(failure, at=at), False, False)
        if isinstance(step, GiveUp):
            return
        assert isinstance(step, TryAgain)
        at += step.wait_s
        assert at <= NOTICED_S + GONE_AGAIN_S
    free = len(course.failed) + NOTICED_S / GONE_AGAIN_S
    assert len(failures) <= retries + free + 1
