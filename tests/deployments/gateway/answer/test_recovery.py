"""What follows a try that has failed: a table, and properties for every sequence of events."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.answer.recovery import (
    GONE_AGAIN_S,
    NOTICED_S,
    CannotResume,
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
    resuming,
)
from observability.traces.request_record import Resumed

LOST = TryFailed("a", at=1.0)
REFUSED = TryFailed("a", at=1.0, was_lost=False)
UNREACHED = TryFailed("a", at=1.0, was_lost=False, was_reached=False)
NO_MEMORY = replace(LOST, ran_out_of_memory=True)
LEAVING = replace(LOST, is_leaving=True)
NEW = Course(retries=1)
ONCE = Course(1, 1, frozenset("b"), frozenset("b"), 6.0)
A, AB = frozenset("a"), frozenset("ab")
HAS, CAN = True, True


@pytest.mark.parametrize(
    ("course", "event", "client_has_bytes", "can_resume", "step"),
    [
        # before the client has anything, a retry begins anew
        (NEW, LOST, False, False, TryAgain(A)),
        (NEW, REFUSED, False, False, TryAgain(A)),
        # the known part of the answer is not computed twice
        (NEW, LOST, False, CAN, TryAgain(A, resumes=True)),
        (NEW, LOST, HAS, CAN, TryAgain(A, resumes=True)),
        # a client never gets the beginning again
        (NEW, LOST, HAS, False, GiveUp()),
        # the last try
        (ONCE, LOST, False, False, GiveUp(is_fatal=True)),
        (ONCE, LOST, HAS, CAN, GiveUp(is_fatal=True)),
        (ONCE, REFUSED, False, False, GiveUp()),
        (ONCE, UNREACHED, False, False, GiveUp()),
        # a replica that leaves costs no try, once
        (ONCE, LEAVING, HAS, CAN, TryAgain(AB, resumes=True)),
        (replace(ONCE, failed=AB), LEAVING, HAS, CAN, GiveUp(is_fatal=True)),
        # Ray Serve has not noticed yet that the replica is gone
        (replace(ONCE, failed=AB), UNREACHED, False, False, TryAgain(AB, wait_s=GONE_AGAIN_S)),
        (replace(ONCE, failed=AB, noticed_at=0.5), UNREACHED, False, False, GiveUp()),
        (replace(ONCE, failed=AB), REFUSED, False, False, GiveUp()),
        # it could exhaust the memory of each replica
        (NEW, NO_MEMORY, False, False, GiveUp(is_memory=True)),
        (NEW, NO_MEMORY, HAS, CAN, GiveUp(is_memory=True)),
        (NEW, replace(REFUSED, ran_out_of_memory=True), False, False, GiveUp(is_memory=True)),
        (ONCE, replace(LEAVING, ran_out_of_memory=True), HAS, CAN, GiveUp(is_memory=True)),
        # the engine that was asked cannot
        (ONCE, CannotResume(), False, False, TryAgain(frozenset("b"))),
        (ONCE, CannotResume(), HAS, False, GiveUp()),
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
def test_each_failed_try_leads_to_its_next_step(
    course: Course, event: Event, client_has_bytes: bool, can_resume: bool, step: Step
) -> None:
    assert next_step(course, event, client_has_bytes, can_resume)[1] == step


@pytest.mark.parametrize(
    ("before", "event", "client_has_bytes", "can_resume", "resumed"),
    [
        # failed, until another engine resumes the answer
        ("", LOST, HAS, CAN, "failed"),
        ("", LOST, False, CAN, "failed"),
        ("resumed", LOST, HAS, CAN, "failed"),
        ("rejected", LOST, HAS, CAN, "failed"),
        # it begins again, or never began
        ("", LOST, False, False, ""),
        ("resumed", LOST, False, False, "failed"),
        ("", LOST, HAS, False, "impossible"),
        ("resumed", LOST, HAS, False, "failed"),
        ("rejected", LOST, HAS, False, "rejected"),
        ("failed", CannotResume(), HAS, CAN, "rejected"),
        ("failed", CannotResume(), False, False, "rejected"),
        # what happens without a failed try
        ("", NO_MEMORY, HAS, CAN, ""),
        ("resumed", Leaves(), HAS, CAN, "resumed"),
        ("failed", NoReplica(), HAS, CAN, "failed"),
        ("", NotPlaced(), HAS, CAN, ""),
    ],
)
def test_each_event_updates_how_the_answer_was_resumed(
    before: Resumed, event: Event, client_has_bytes: bool, can_resume: bool, resumed: Resumed
) -> None:
    course, _ = next_step(replace(NEW, resumed=before), event, client_has_bytes, can_resume)
    assert course.resumed == resumed


@pytest.mark.parametrize("was_lost", [False, True])
def test_tokens_are_exact_only_if_every_engine_resumed_exactly(was_lost: bool) -> None:
    exact = resuming(NEW, is_exact=True, was_lost=was_lost)
    assert (exact.resumed, exact.resume_mode) == ("resumed" if was_lost else "", "exact")
    continued = resuming(resuming(exact, is_exact=False, was_lost=was_lost), True, was_lost)
    assert continued.resume_mode == "continued"
    anew, step = next_step(continued, REFUSED, False, False)
    assert (step, anew.resume_mode) == (TryAgain(A), "")


def test_the_loss_of_a_replica_that_was_leaving_makes_no_request_fatal() -> None:
    """It ended on purpose, so the request was not the cause."""
    course = Course(retries=1)
    for event in (replace(LEAVING, replica_id="c"), replace(REFUSED, replica_id="b")):
        course, step = next_step(course, event, False, False)
        assert isinstance(step, TryAgain)
    assert next_step(course, LOST, False, False)[1] == GiveUp(is_fatal=False)


@pytest.mark.parametrize(("after_s", "counts"), [(0.0, False), (4.9, False), (5.0, True)])
def test_a_dead_replica_selected_again_within_five_seconds_uses_no_try(
    after_s: float, counts: bool
) -> None:
    course, _ = next_step(Course(retries=1), replace(LOST, at=10.0), False, False)
    after, step = next_step(course, replace(UNREACHED, at=10.0 + after_s), False, False)
    assert after.tries == 1 + counts
    assert step == (GiveUp() if counts else TryAgain(A, wait_s=0.1))


FAILURES = st.builds(
    TryFailed,
    st.sampled_from("abcdef"),
    st.floats(0, 20),
    was_lost=st.booleans(),
    was_reached=st.booleans(),
    is_leaving=st.booleans(),
)
EVENTS = FAILURES | st.sampled_from([CannotResume(), Leaves(), NoReplica(), NotPlaced()])
CASES = st.lists(st.tuples(EVENTS, st.booleans(), st.booleans()), min_size=1, max_size=30)


@given(st.integers(0, 4), CASES)
def test_every_sequence_of_failures_keeps_the_invariants(
    retries: int, cases: list[tuple[Event, bool, bool]]
) -> None:
    course = Course(retries)
    for event, client_has_bytes, can_resume in cases:
        before = course
        course, step = next_step(before, event, client_has_bytes, can_resume)
        assert course.retries == retries
        assert before.tries <= course.tries <= before.tries + 1
        assert course.lost <= course.failed
        assert before.failed <= course.failed
        if client_has_bytes:  # never the beginning again
            assert not isinstance(step, DecideAgain)
            assert not isinstance(step, TryAgain) or (step.resumes and can_resume)
        if isinstance(step, TryAgain):
            assert step.avoid == course.failed
        if isinstance(event, TryFailed):
            first = event.replica_id not in before.failed
            assert not (event.is_leaving and first) or course.tries == before.tries
            assert not (first and not event.is_leaving) or course.tries == before.tries + 1
            assert event.replica_id in course.failed
        else:
            resumed, mode = before.resumed, before.resume_mode
            assert replace(course, resumed=resumed, resume_mode=mode) == before
        if client_has_bytes and isinstance(event, TryFailed | CannotResume):
            assert course.resumed in ("rejected", "failed", "impossible")
        if isinstance(step, GiveUp):
            assert not step.is_fatal or len(course.lost) == retries + 1
            break
        assert course.tries <= retries


@given(st.lists(FAILURES, min_size=1, max_size=60), st.integers(0, 4))
def test_retries_without_an_answer_end_in_bounded_time(
    failures: list[TryFailed], retries: int
) -> None:
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
