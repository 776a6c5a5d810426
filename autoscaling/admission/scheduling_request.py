"""Input and output of a pool's scheduler for one request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaling.admission.admission import Verdict, whole_seconds
from autoscaling.admission.overflow import OverflowChoice, OverflowRules
from autoscaling.admission.waiting import Waiter
from autoscaling.slo import PriorityClass, Slo
from router.board.pool_demand import DemandCounters
from router.board.recent import NO_TIERS, Placed, Recent, TierDepths, announcement
from router.choice.cost import TtftCorrection
from router.choice.placement import Placement
from router.choice.policies import Candidate, PlacementRequest


@dataclass
class PoolSettings:
    """A pool's settings; see the fleet file's reference. `weights`: of tenants whose weight is not
    1."""

    slos: Mapping[PriorityClass, Slo] = field(default_factory=dict)
    batch_queue: int = 0
    overflow: OverflowRules | None = None
    policy: str = "prefix"
    shadow_policy: str | None = None
    interactive_queue: int = 1024
    weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SchedulingRequest:
    """One request, from the view of a scheduler.

    `depths`: slot -> leading segments of the prompt that the index confirms; None: it did not
    answer. `tiers`: the same with those that a tier has after them. `arrived`: when the
    request arrived, in seconds of the scheduler's clock, and `deadline` until when it must be
    answered. `policy` None: the pool's. `no_overflow`: why the overflow pool may not serve it;
    None: it may. `sequences`: the number of sequences in the engine. `is_again`: it was decided
    before, and does not count as a new arrival.
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
    tiers: TierDepths = NO_TIERS


@dataclass(frozen=True)
class Considered:
    """A possible placement, not counted anywhere yet; `placement` ranks the replicas."""

    placement: Placement
    recent: Recent

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        return self.placement.ranked

    def placed(
        self, request: SchedulingRequest, chosen: Candidate, gateway: str, ticket: str
    ) -> Placed:
        """Return the announcement of this request at the chosen candidate."""
        prompt = request.prompt
        confirmed = (request.depths or {}).get(chosen.slot, 0)
        host_tokens, disk_tokens, peer_tokens = chosen.loaded_tokens
        return Placed(
            gateway=gateway,
            ticket=ticket,
            slot=chosen.slot,
            incarnation=chosen.incarnation,
            prompt_tokens=prompt.prompt_tokens,
            uncached_tokens=max(0, prompt.prompt_tokens - chosen.cached_tokens),
            predicted_ttft_s=chosen.predicted_ttft_s,
            matched=self.recent.matched,
            # everything that is not in the index: an announcement by another gateway may be
            # withdrawn
            announced=announcement(prompt.keys, confirmed),
            sequences=request.sequences,
            adapter=prompt.adapter or "",
            host_tokens=host_tokens,
            disk_tokens=disk_tokens,
            peer_tokens=peer_tokens,
        )


@dataclass(frozen=True)
class Attempt:
    """One active placement: `chosen` is None if any replica may serve it.

    `placed_at` on the scheduler's clock. `correction`: the applied correction of the prediction for
    `chosen`, which learns from the time until its first token; None: that time was not predicted.
    `work_s`: engine seconds charged to its tenant.
    """

    ticket: str
    request: SchedulingRequest
    placement: Placement
    chosen: Candidate | None
    placed_at: float
    correction: TtftCorrection | None = None
    work_s: float = 0.0

    def answering(self) -> Attempt:
        """Return the same after its first token was recorded: without its placement, which
        references every replica, because an answer may take minutes."""
        return replace(self, placement=Placement(()))


@dataclass(frozen=True)
class Computed:
    """The work of an engine for a request: prompt tokens that it computed (None: unknown), and
    `decode_s` from the first token to the last."""

    tokens: int | None
    decode_s: float


@dataclass(frozen=True)
class Decision:
    """A decision, and its basis.

    An admitted request has an `attempt`, a queued one a `waiter`; an overflowed one goes to the
    other pool's `stand_in`. `evicted` leaves the queue: it is rejected, to make room for a tenant
    with fewer queued requests.
    """

    request: SchedulingRequest
    considered: Considered
    verdict: Verdict
    attempt: Attempt | None = None
    waiter: Waiter[SchedulingRequest] | None = None
    evicted: Waiter[SchedulingRequest] | None = None

    def count_in(self, demand: DemandCounters) -> None:
        """Add the request to the counters of its pool."""
        kind, request = self.verdict.kind, self.request
        if not request.is_again:
            cached = max((c.cached_tokens for c in self.considered.ranked), default=0)
            demand.arrived += 1
            demand.prompt_tokens += request.prompt.prompt_tokens
            demand.uncached_tokens += max(0, request.prompt.prompt_tokens - cached)
        demand.rejected += kind == "rejected"
        demand.overflowed += kind == "overflowed"

    def rejected_after_all(self) -> Decision:
        """Return the decision for an evicted request."""
        reason = "the queue of the model is full, and this tenant has the most requests in it"
        rejected = replace(
            self.verdict,
            kind="rejected",
            reason=reason,
            retry_after_s=whole_seconds(self.verdict.best_ttft_s or 0.0),
            best_ttft_s=None,
        )
        return replace(self, verdict=rejected)
