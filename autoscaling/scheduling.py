"""What a pool's scheduler is asked of one request, and what it answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaling.admission import MAX_RETRY_AFTER_S, Verdict
from autoscaling.overflow import OverflowChoice
from autoscaling.slo import PriorityClass
from autoscaling.waiting import Waiter
from router.cost import TtftCorrection
from router.placement import Placement
from router.policies import Candidate, PlacementRequest
from router.recent import Recent


@dataclass(frozen=True)
class SchedulingRequest:
    """One request, as a scheduler sees it.

    `depths`: slot -> leading segments of the prompt that the index confirms; None: it did not
    answer. `arrived`: when the request came, in seconds of the scheduler's clock, and `deadline`
    until when it has to be answered. `policy` None: the pool's own. `no_overflow`: why the overflow
    pool may not serve it; None: it may. `sequences`: how many an engine makes of it. `is_again`: it
    was decided before, and came no second time.
    """

    prompt: PlacementRequest
    depths: Mapping[int, int] | None
    arrived: float
    tenant: str = ""
    priority: PriorityClass = "interactive"
    policy: str | None = None
    overflow: OverflowChoice = "allow"
    no_overflow: str | None = None
    sequences: int = 1
    deadline: float = math.inf
    is_again: bool = False


@dataclass(frozen=True)
class Considered:
    """What a placement would be, counted nowhere yet; `placement` ranks the replicas."""

    placement: Placement
    recent: Recent

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        return self.placement.ranked


@dataclass(frozen=True)
class Attempt:
    """One placement that is under way: `chosen` is None when any replica may serve it.

    `placed_at` on the scheduler's clock. `correction`: what the prediction for `chosen` was
    corrected by, which learns from the time from then to its first token; None: that time was not
    predicted. `work_s`: engine seconds that its tenant was charged for it.
    """

    ticket: str
    request: SchedulingRequest
    placement: Placement
    chosen: Candidate | None
    placed_at: float
    correction: TtftCorrection | None = None
    work_s: float = 0.0

    def answering(self) -> Attempt:
        """The same once its first token has come and been told of: without its placement, which
        knows every replica, while an answer may take minutes."""
        return replace(self, placement=Placement(()))


@dataclass(frozen=True)
class Computed:
    """What an engine did for a request: prompt tokens that it computed (None: not known), and
    `decode_s` from the first token to the last."""

    tokens: int | None
    decode_s: float


@dataclass(frozen=True)
class Decision:
    """What a request is told, and from what. `attempt` is there when it goes, `waiter` when it
    waits; one that overflows goes to the other pool's `stand_in`. `evicted` waits no longer: it is
    refused, for one of a tenant with fewer who wait."""

    request: SchedulingRequest
    considered: Considered
    verdict: Verdict
    attempt: Attempt | None = None
    waiter: Waiter[SchedulingRequest] | None = None
    evicted: Waiter[SchedulingRequest] | None = None

    def refused_after_all(self) -> Decision:
        """What it is told when it was evicted."""
        reason = "the queue is full, and other tenants have fewer requests in it"
        due_s = math.ceil(min(self.verdict.best_ttft_s or 0.0, MAX_RETRY_AFTER_S))
        refused = replace(
            self.verdict,
            kind="reject",
            reason=reason,
            retry_after_s=max(1, due_s),
            best_ttft_s=None,
        )
        return replace(self, verdict=refused)
