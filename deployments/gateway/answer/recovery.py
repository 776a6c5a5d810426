"""Decides what follows a try that ended before its client had the whole answer.

The decision is a pure function. The next try may repeat the request, resume or move its answer,
or schedule it again when no replica is up. The caller makes the tries and reports how each ended.

- At most `retries` + 1 tries count. A replica that leaves costs its requests no try, once.
- A client that has a part of its answer never gets the beginning again: another engine resumes
  the answer, or the client gets an error.
- A request whose replica ran out of memory is not tried again: it could end one replica after the
  other.
- A failed replica is not tried again, unless Ray Serve has not noticed the failure and selects it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from observability.traces.request_record import Resumed, ResumeMode

# Ray Serve selects a lost replica until it notices the loss. Meanwhile the gateway tries again
# every GONE_AGAIN_S, for up to NOTICED_S.
GONE_AGAIN_S, NOTICED_S = 0.1, 5.0


@dataclass(frozen=True)
class Course:
    """The tries of one request so far.

    `tries`: the number that count. `failed`: replicas that failed. `lost`: failed replicas that
    were lost while they had the request, which may be the cause. `noticed_at`: when Ray Serve
    should have noticed the first failure, in seconds of the caller's clock. `resumed` and
    `resume_mode`: what to report of the answer's resuming so far (`AnswerEnd`).
    """

    retries: int
    tries: int = 0
    failed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    noticed_at: float = math.inf
    resumed: Resumed = ""
    resume_mode: ResumeMode = ""


@dataclass(frozen=True)
class TryFailed:
    """The engine of a replica was interrupted, failed or was not reached, at this time (seconds).

    `was_lost`: the engine was lost while it had the request. `was_reached`: the request reached the
    replica. `is_leaving`: the replica had reported that it is leaving. `ran_out_of_memory`: the
    replica had no memory left for the request, or ended for that reason.
    """

    replica_id: str
    at: float
    was_lost: bool = True
    was_reached: bool = True
    is_leaving: bool = False
    ran_out_of_memory: bool = False


@dataclass(frozen=True)
class CannotResume:
    """The engine cannot resume the answer."""


@dataclass(frozen=True)
class Leaves:
    """The replica is leaving, and the next try is already placed. It resumes the answer, or
    begins it if there is no token yet."""


@dataclass(frozen=True)
class NoReplica:
    """The request waited for a replica, and none is up."""


@dataclass(frozen=True)
class NotPlaced:
    """No replica admitted the request: the pool's queue is full, or the time is over."""


Event = TryFailed | CannotResume | Leaves | NoReplica | NotPlaced


@dataclass(frozen=True)
class TryAgain:
    """Try a replica outside `avoid`, after `wait_s` seconds. `resumes`: its engine resumes the
    answer; otherwise it begins it."""

    avoid: frozenset[str]
    resumes: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True)
class TryThere:
    """Make the try that is already placed."""


@dataclass(frozen=True)
class DecideAgain:
    """Schedule the request again, as if it arrived now."""


@dataclass(frozen=True)
class GiveUp:
    """Return an error to the client. `is_fatal`: every try lost its engine. `is_memory`: the
    request may exhaust the memory of any replica."""

    is_fatal: bool = False
    is_memory: bool = False


Step = TryAgain | TryThere | DecideAgain | GiveUp


def next_step(
    course: Course, event: Event, client_has_bytes: bool, can_resume: bool
) -> tuple[Course, Step]:
    """Return the course after this event with what to report of it, and the next step.

    `client_has_bytes`: the client has a part of the answer, or its headers. `can_resume`: the log
    is complete enough for another engine to resume the answer.
    """
    match event:
        case Leaves():
            return course, TryThere()
        case NotPlaced():
            return course, GiveUp()
        case NoReplica():  # a client that has bytes cannot wait for a replica
            return (course, GiveUp()) if client_has_bytes else (_anew(course), DecideAgain())
        case CannotResume():
            course = replace(course, resumed="rejected")
            if client_has_bytes:
                return course, GiveUp()
            return _anew(course), TryAgain(course.failed)
    course, wait_s = _after_failure(course, event)
    if event.ran_out_of_memory:
        return course, GiveUp(is_memory=True)
    if course.resumed == "resumed":
        course = replace(course, resumed="failed")
    is_last = course.tries > course.retries
    if is_last or (client_has_bytes and not can_resume):
        if client_has_bytes and not course.resumed:
            course = replace(course, resumed="impossible")
        return course, GiveUp(is_fatal=is_last and len(course.lost) > course.retries)
    if can_resume:  # failed, until another engine resumes the answer
        return replace(course, resumed="failed"), TryAgain(course.failed, True, wait_s)
    return _anew(course), TryAgain(course.failed, False, wait_s)


def resuming(course: Course, is_exact: bool, was_lost: bool) -> Course:
    """Return the course once an engine resumes the answer.

    `is_exact`: its tokens are proved equal. `was_lost`: the previous engine was lost; otherwise it
    is leaving.
    """
    mode: ResumeMode = (course.resume_mode or "exact") if is_exact else "continued"
    return replace(course, resumed="resumed" if was_lost else course.resumed, resume_mode=mode)


def _anew(course: Course) -> Course:
    """Return the course of an answer that begins again."""
    return replace(course, resume_mode="")


def _after_failure(course: Course, event: TryFailed) -> tuple[Course, float]:
    """Return the course with this failure, and the seconds to wait before the next try."""
    is_known = event.replica_id in course.failed
    noticed_at = min(course.noticed_at, event.at + NOTICED_S)
    is_unnoticed = is_known and not event.was_reached and event.at < noticed_at
    # a leaving replica ends on purpose, so its first failure does not count against the request
    counts = not is_unnoticed and (is_known or not event.is_leaving)
    course = replace(
        course,
        tries=course.tries + counts,
        failed=course.failed | {event.replica_id},
        lost=course.lost | {event.replica_id} if counts and event.was_lost else course.lost,
        noticed_at=noticed_at,
    )
    return course, GONE_AGAIN_S if is_unnoticed else 0.0
