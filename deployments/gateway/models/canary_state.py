"""Where a canary is: which step, since when, and what ended it. Pure.

A state is changed by replacing the one with the version before, so of several gateways one wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import replace

# Within this time after a change of settings all gateways have them.
SETTLED_S = 60.0

CanaryStatus = Literal["running", "promoted", "aborted"]


@dataclass(frozen=True)
class CanaryPlan:
    """`id` differs for each canary of a route. `steps`: the canary's share of new conversations,
    from 0 to 1, rising. A step takes `step_s` seconds and `requests` of the canary at least."""

    id: str
    steps: Sequence[float]
    step_s: float
    requests: int


class CanaryState(msgspec.Struct, frozen=True):
    """`begun`, `since`: when it and its step began, in Unix time. `requests`: the canary's, when
    the step began. `why`: sentences, for one that has ended."""

    id: str
    version: int
    status: CanaryStatus
    step: int
    begun: float
    since: float
    requests: int = 0
    why: str = ""

    def share(self, plan: CanaryPlan) -> float:
        """The canary's share of new conversations."""
        if self.status == "running":
            return plan.steps[min(self.step, len(plan.steps) - 1)]
        return 1.0 if self.status == "promoted" else 0.0

    def ended(self, status: CanaryStatus, why: str, now: float) -> CanaryState:
        """The next state, in which nothing more is decided."""
        return replace(self, version=self.version + 1, status=status, since=now, why=why)


def first(plan: CanaryPlan, before: CanaryState | None, now: float) -> CanaryState:
    """The state of a canary that nothing is known of; `before`: of another one of the route."""
    return CanaryState(plan.id, before.version + 1 if before else 1, "running", 0, now, now)


def is_of_later_settings(state: CanaryState, adopted: float, now: float) -> bool:
    """Return whether the state of another canary comes from gateways with later settings. It began
    after this gateway `adopted` its settings, in Unix time, and less than SETTLED_S ago."""
    return state.begun > adopted and now - state.begun < SETTLED_S


def next_state(
    state: CanaryState, plan: CanaryPlan, worse_in: str | None, requests: int, now: float
) -> CanaryState | None:
    """Return the state that follows; None: it stays. `worse_in`: what is worse than in the base;
    `requests`: the canary's in all."""
    if state.status != "running":
        return None
    if worse_in is not None:
        return state.ended("aborted", f"Its {worse_in} is worse than the other pools'.", now)
    is_due = now - state.since >= plan.step_s and requests - state.requests >= plan.requests
    if not is_due:
        return None
    if state.step + 1 < len(plan.steps):
        version, step = state.version + 1, state.step + 1
        return replace(state, version=version, step=step, since=now, requests=requests)
    return state.ended("promoted", "All steps passed.", now)
