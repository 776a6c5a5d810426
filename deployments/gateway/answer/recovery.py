"""What follows when a try of a request has ended before its client has the whole answer.

A pure decision. Retrying from the beginning, continuing with another engine, moving away from an
engine that is leaving, and deciding anew where no replica is up are all one thing here: the next
try. The caller makes the tries and reports how each ended.

- At most `retries` + 1 tries count. A replica that leaves costs its requests none, once.
- A client that has a part of its answer never gets the beginning again: another engine continues
  the answer, or the client gets an error.
- A replica that failed is not tried again, unless Ray Serve names it because it has not noticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

# Ray Serve names a replica that is gone until it has noticed: it is tried again this often, for
# this long.
GONE_AGAIN_S, NOTICED_S = 0.1, 5.0


@dataclass(frozen=True)
class Course:
    """The tries of one request so far.

    `tries`: those that count. `failed`: replicas that failed. `lost`: those of them that were lost
    with the request in them, so that it may be why. `noticed_at`: when Ray Serve should have
    noticed the first failure, in seconds of the caller's clock.
    """

    retries: int
    tries: int = 0
    failed: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    noticed_at: float = math.inf


@dataclass(frozen=True)
class TryFailed:
    """The engine of a replica broke off, failed, or was not reached, at this time (seconds).

    `was_lost`: with the request in it. `was_reached`: the request came to it. `is_leaving`: the
    replica had reported that it is leaving.
    """

    replica_id: str
    at: float
    was_lost: bool = True
    was_reached: bool = True
    is_leaving: bool = False


@dataclass(frozen=True)
class CannotContinue:
    """The engine that was to continue the answer cannot."""


@dataclass(frozen=True)
class Leaves:
    """The replica is leaving, and the next try is placed already: it continues the answer, or
    begins it where there is no token yet."""


@dataclass(frozen=True)
class NoReplica:
    """The request waited for any replica, and none is up."""


@dataclass(frozen=True)
class NotPlaced:
    """No replica took the request: the pool's queue is full, or nobody took it in time."""


Event = TryFailed | CannotContinue | Leaves | NoReplica | NotPlaced


@dataclass(frozen=True)
class TryAgain:
    """On a replica that is none of `avoid`, after `wait_s` seconds. `continues`: that engine
    continues the answer; otherwise it begins it."""

    avoid: frozenset[str]
    continues: bool = False
    wait_s: float = 0.0


@dataclass(frozen=True)
class TryThere:
    """The next try is placed already."""


@dataclass(frozen=True)
class DecideAgain:
    """The request is decided once more, as if it came now."""


@dataclass(frozen=True)
class GiveUp:
    """The client gets an error. `is_fatal`: every try was lost with its engine."""

    is_fatal: bool = False


Step = TryAgain | TryThere | DecideAgain | GiveUp


def next_step(
    course: Course, event: Event, client_has_bytes: bool, can_continue: bool
) -> tuple[Course, Step]:
    """`client_has_bytes`: of the answer, headers included. `can_continue`: what is known of the
    answer is enough for another engine to continue it."""
    match event:
        case Leaves():
            return course, TryThere()
        case NotPlaced():
            return course, GiveUp()
        case NoReplica():  # a client that has bytes cannot wait for one
            return course, GiveUp() if client_has_bytes else DecideAgain()
        case CannotContinue():
            return course, GiveUp() if client_has_bytes else TryAgain(course.failed)
    course, wait_s = _after_failure(course, event)
    if course.tries > course.retries:
        return course, GiveUp(is_fatal=len(course.lost) > course.retries)
    if client_has_bytes and not can_continue:
        return course, GiveUp()
    return course, TryAgain(course.failed, can_continue, wait_s)


def _after_failure(course: Course, event: TryFailed) -> tuple[Course, float]:
    """The course with this failure, and how long to wait before the next try."""
    is_known = event.replica_id in course.failed
    noticed_at = min(course.noticed_at, event.at + NOTICED_S)
    is_unnoticed = is_known and not event.was_reached and event.at < noticed_at
    # the end of a replica that leaves was wanted: once, that is no fault of the request
    counts = not is_unnoticed and (is_known or not event.is_leaving)
    course = replace(
        course,
        tries=course.tries + counts,
        failed=course.failed | {event.replica_id},
        lost=course.lost | {event.replica_id} if counts and event.was_lost else course.lost,
        noticed_at=noticed_at,
    )
    return course, GONE_AGAIN_S if is_unnoticed else 0.0
