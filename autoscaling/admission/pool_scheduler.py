"""The scheduler of one pool in one gateway: it decides about each request.

Its state is the replicas' loads, recent placements of all gateways, prediction errors, queues and
overflow. `consider` ranks the replicas, `decide` admits, queues, overflows or rejects the request,
and `next_turn` admits queued requests. An admitted request counts against its replica at once, and
is announced to the other gateways.

It is only memory and arithmetic, with the clock as an argument. A gateway feeds it from Redis and
HTTP, the simulator from simulated engines, and both decide by the same code.
"""

from __future__ import annotations

import math
import random
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from autoscaling.admission import work
from autoscaling.admission.admission import Admission, AdmissionCase, Verdict
from autoscaling.admission.fair_share import ActiveTenants
from autoscaling.admission.outage import Outage, confirmed
from autoscaling.admission.outlook import Outlook, doubted
from autoscaling.admission.scheduling_request import (
    Attempt,
    Computed,
    Considered,
    Decision,
    PoolSettings,
    SchedulingRequest,
)
from autoscaling.admission.waiting import Waiter
from router.board.load import LoadBoard, LoadReport
from router.board.pool_demand import DemandCounters
from router.board.recent import Placed, Recent, RecentPlacements
from router.choice import cost
from router.choice.cost import TtftCorrection
from router.choice.placement import BLIND, Placement, place, place_blind
from router.choice.policies import Candidate, PlacementRequest
from router.choice.pool_policies import PoolPolicies
from router.index.slots import LEASE_S

# This long after a board became empty, it is known whether its replicas are dead. Waiting requests
# are not sent to them before.
FOUND_OUT_S = LEASE_S + 2.0
# At most 1 in 100 first tokens is later than predicted by this many mean errors, if errors are
# normal. An SLO is promised to all admitted requests, not to most of them.
DOUBT_ERRORS = 3.0


def _nothing(*placed: Placed) -> None:
    """The announcement of a pool with only one gateway, or the notification of a caller that polls
    often enough."""


class PoolScheduler:
    """The scheduler. `board`, `correction`, `admission` and `demand` are readable; feeds update the
    board.

    `overflow` is the scheduler of the overflow pool. `announce` gets each placement, for the other
    gateways, whose placements arrive through `heard`. `freed` is called when a turn may have come.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        settings: PoolSettings | None = None,
        overflow: PoolScheduler | None = None,
        rng: random.Random | None = None,
    ) -> None:
        settings = settings or PoolSettings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._policies = PoolPolicies()
        self._recent = RecentPlacements()
        self._in_flight: Counter[str] = Counter()
        self._unassigned: set[str] = set()
        self._tenants = ActiveTenants()
        self.freed: Callable[[], None] = _nothing
        self.gateway = secrets.token_hex(8)
        self.announce: Callable[[Placed], None] = _nothing
        self.board = LoadBoard(clock)
        # by whether engines have measured how fast they compute prompts: the prior may be wrong by
        # any factor, which would then distort the measured rates for good
        self._corrections = {False: TtftCorrection(), True: TtftCorrection()}
        self.admission = Admission({})
        self.demand = DemandCounters()
        self.told_of_outage: Outage | None = None
        self.change(settings, overflow)

    def change(self, settings: PoolSettings, overflow: PoolScheduler | None) -> None:
        """Apply these settings from now on; state and queues stay.

        Raises ValueError for a policy that does not exist, and changes nothing then.
        """
        self._policies.change(settings.policy, settings.shadow_policy)
        self._overflow = overflow
        self.admission.shares.weights = settings.weights
        self.admission.change(
            settings.slos, settings.batch_queue, settings.overflow, settings.interactive_queue
        )

    @property
    def correction(self) -> TtftCorrection:
        """The correction of current predictions."""
        return self._corrections[self.board.prefill_learned]

    @property
    def outage(self) -> Outage | None:
        """The outage of the pool; None as soon as a replica is up, and while it is not certain.

        `told_of_outage` comes from the observer of Ray Serve: a board may also be empty because
        reports of replicas are missing.
        """
        return confirmed(self.told_of_outage, self.board.empty_for_s, self._clock())

    @property
    def may_be_lost(self) -> bool:
        """Whether the last replica was lost a moment ago, and an outage is not yet certain."""
        return 0.0 < self.board.empty_for_s < FOUND_OUT_S and self.outage is None

    @property
    def unassigned(self) -> int:
        """Number of requests admitted without a known replica, which wait for any to take them."""
        return len(self._unassigned)

    def consider(
        self, request: SchedulingRequest, avoid: Collection[str] = frozenset()
    ) -> Considered:
        """Rank the replicas for a request, except those to `avoid`.

        Raises ValueError for a policy that does not exist.
        """
        prompt, depths = request.prompt, request.depths
        loads = self.board.loads()
        if avoid:
            loads = {r: load for r, load in loads.items() if r not in avoid}
        if not loads:
            if self.outage is not None:  # the replicas known before are dead
                return Considered(Placement(()), Recent())
            known = {r: load for r, load in self.board.last_known().items() if r not in avoid}
            blind = place_blind(prompt, known, self._in_flight, self._rng)
            return Considered(blind, Recent())
        incarnations = {load.slot: load.incarnation for load in loads.values()}
        recent = self._recent.about(
            prompt.keys, depths or {}, incarnations, self._clock(), request.tiers
        )
        placement = place(
            prompt,
            loads,
            depths,
            recent,
            self._policies.called(request.policy),
            self._rng,
            self.correction,
            self._policies.shadow,
            request.tiers,
        )
        return Considered(placement, recent)

    def needs_warm(self, request: SchedulingRequest, considered: Considered) -> bool:
        """Return whether a warm replica should take traffic now, because the SLO is missed without
        it."""
        if request.priority != "interactive" or not self.board.warm():
            return False
        elapsed_s = self._clock() - request.arrived
        elapsed_s += self._until_turn_s(request, considered)
        return self.admission.is_lost(elapsed_s, considered.ranked, self._doubt)

    def offer(self, request: SchedulingRequest) -> tuple[Candidate, float, bool] | None:
        """Return the replica that would serve the request here, the seconds until its first token,
        and whether that meets its SLO. None: no replica is known.

        A batch request without an objective has the interactive one. While the pool's prefill rate
        is only a guess, an idle replica counts as one that meets it. Otherwise a guess that is too
        low would keep all requests away, and the rate would never be measured.
        """
        considered = self.consider(request)
        if not considered.ranked or considered.placement.policy == BLIND:
            return None
        until_turn_s = self._until_turn_s(request, considered)
        slo = self.admission.slo_of(request.priority) or self.admission.slo_of("interactive")
        most_s = math.inf if slo is None else doubted(slo, self._doubt).ttft_s
        most_s -= self._clock() - request.arrived + until_turn_s
        in_time = (c for c in considered.ranked if c.predicted_ttft_s <= most_s)
        soonest = min(considered.ranked, key=lambda candidate: candidate.predicted_ttft_s)
        chosen = next(in_time, soonest)
        ttft_s = chosen.predicted_ttft_s
        is_trial = not self.board.prefill_learned and until_turn_s + chosen.wait_s <= 0.0
        return chosen, until_turn_s + ttft_s, ttft_s <= most_s or is_trial

    def _until_turn_s(self, request: SchedulingRequest, considered: Considered) -> float:
        return self.admission.until_turn_s(
            request.priority, considered.ranked, request.tenant, self._tenants.are_several
        )

    def queue_s(self, sequences: int, tokens: int) -> float:
        """Return the seconds until the pool's full replicas have started a queue of `sequences`
        sequences with `tokens` uncached prompt tokens; infinite: no engine has measured its
        pace."""
        loads = self.board.loads().values()
        if not loads or not self.board.prefill_learned:
            return math.inf
        return cost.queue_s(loads, sequences, tokens)

    def decide(self, request: SchedulingRequest, considered: Considered) -> Decision:
        """Decide whether the request is admitted, queued, overflowed or rejected: once, before its
        first attempt.

        `considered` must be fresh, without placements since.
        """
        now, elsewhere = self._clock(), None
        self._tenants.heard_of(request.tenant, now)
        if self._overflow is not None:
            if self._overflow.outage is not None and request.overflow == "allow":
                request = replace(
                    request, no_overflow=request.no_overflow or "it has no running replica"
                )
            if request.no_overflow is None and request.overflow != "never":
                elsewhere = self._overflow.outlook(request.prompt.prompt_tokens)
        case = self._case_of(request, now, considered.ranked, elsewhere)
        outage = None if considered.ranked or case.only_overflow else self.outage
        if outage is not None:
            up_in_s, patience_s = outage.up_in_s(now), request.deadline - now
            verdict = self.admission.decide_without_replica(case, up_in_s, patience_s)
        else:
            verdict = self.admission.decide(case)
        decision = Decision(request, considered, verdict)
        if verdict.kind == "overflowed":
            return decision  # counted after the other pool has decided
        decision.count_in(self.demand)
        if verdict.kind == "admitted":
            attempt = self.take(request, considered, verdict.index)
            return Decision(request, considered, verdict, attempt)
        if verdict.kind == "queued":
            tokens, work_s = work.expected_anywhere(self.board, request, considered.ranked)
            waiter = Waiter(request, request.tenant, work_s=work_s, since=now, tokens=tokens)
            evicted = self.admission.room_of(request.priority).enter(waiter)
            self.demand.rejected += evicted is not None
            return Decision(request, considered, verdict, waiter=waiter, evicted=evicted)
        return decision

    def _case_of(
        self,
        request: SchedulingRequest,
        now: float,
        ranked: Sequence[Outlook] = (),
        overflow: Sequence[Outlook] | None = None,
    ) -> AdmissionCase:
        return AdmissionCase(
            priority=request.priority,
            elapsed_s=now - request.arrived,
            ranked=ranked,
            overflow=overflow,
            now=now,
            only_overflow=request.overflow == "only",
            doubt=self._doubt,
            tenant=request.tenant,
            shared=self._tenants.are_several,
        )

    def outlook(self, prompt_tokens: int) -> Sequence[Outlook]:
        """Return how soon a prompt of about this length would be served here, without cached
        tokens."""
        unknown = SchedulingRequest(PlacementRequest(prompt_tokens), None, self._clock())
        return self.consider(unknown).ranked

    def stand_in(
        self,
        request: SchedulingRequest,
        origin: PoolScheduler,
        asked: Decision,
        unfit: str | None = None,
    ) -> Decision:
        """Place a request here that `origin` decided (`asked`) to overflow, at the replica with the
        earliest first token; or reject it there.

        `request` is the same in this pool's tokens. `unfit`: why this pool cannot serve it. It is
        also rejected if others have filled this pool while it was read.
        """
        considered, now = self.consider(request), self._clock()
        case = self._case_of(request, now, overflow=considered.ranked)
        verdict = origin.admission.confirm_overflow(asked.verdict, case, unfit)
        if verdict.kind == "rejected" and asked.verdict.outage:
            again = replace(asked.request, no_overflow=verdict.reason)
            return origin.decide(again, origin.consider(again))
        final = Decision(asked.request, asked.considered, verdict)
        final.count_in(origin.demand)
        if verdict.kind == "rejected":
            return final
        Decision(request, considered, Verdict("admitted", verdict.reason)).count_in(self.demand)
        ttfts = [candidate.predicted_ttft_s for candidate in considered.ranked]
        soonest = ttfts.index(min(ttfts)) if ttfts else 0
        attempt = self.take(request, considered, soonest)
        return Decision(request, considered, verdict, attempt)

    def next_turn(self) -> tuple[Waiter[SchedulingRequest], Attempt] | None:
        """Return a queued request that goes now; None: no other goes yet. Call it until it returns
        None."""
        now, admission = self._clock(), self.admission
        if (turn := admission.next_waiter(now)) is None:
            return None
        priority, waiter = turn
        if self.outage is not None or self.may_be_lost:
            return None
        considered = self.consider(waiter.what)
        if priority == "interactive":
            index = admission.may_begin(considered.ranked)
        else:
            index = admission.may_leave(
                now - waiter.since, considered.ranked, self._tenants.are_several
            )
        if index is None:
            return None
        admission.room_of(priority).leave(waiter)
        return waiter, self.take(waiter.what, considered, index)

    def left(self, waiter: Waiter[SchedulingRequest]) -> None:
        """Remove a queued request whose client left. No effect if its turn has come."""
        self.admission.room_of(waiter.what.priority).leave(waiter)

    def place(self, request: SchedulingRequest, avoid: Collection[str] = frozenset()) -> Attempt:
        """Place an admitted request at the best replica, regardless of the SLO."""
        return self.take(request, self.consider(request, avoid), 0)

    def place_anywhere(self, request: SchedulingRequest) -> Attempt:
        """Admit a request for any replica, if it cannot be decided."""
        return self.take(request, Considered(Placement(()), Recent()), 0)

    def answered(self, attempt: Attempt, replica_id: str, report: LoadReport | None) -> None:
        """Record the first token from that replica, with the load that it reports."""
        self._unassigned.discard(attempt.ticket)
        self.board.unplaced(attempt.ticket)
        if report is not None:
            self.board.reported(replica_id, report)
        self.freed()

    def observed(self, attempt: Attempt, ttft_s: float) -> None:
        """Record that the chosen replica's first token arrived `ttft_s` seconds after the
        placement.

        The gateway's own time before that (reading, queueing, a failed attempt) is excluded,
        because it would be added to all later predictions.
        """
        chosen = attempt.chosen
        if attempt.correction is not None and chosen is not None:
            tokens = attempt.request.prompt.prompt_tokens
            attempt.correction.observe(chosen.raw_ttft_s, ttft_s, chosen.working_on_node, tokens)

    def ended(
        self, attempt: Attempt, served_by: str | None, computed: Computed | None = None
    ) -> None:
        """End the attempt: served by that replica, or (None) not at all.

        Its tenant is charged for `computed`, if known, instead of the expectation.
        """
        self._unassigned.discard(attempt.ticket)
        done_s = work.done_s(self.board, attempt, served_by, computed)
        self.admission.shares.settle(attempt.request.tenant, done_s - attempt.work_s)
        self.freed()
        if (chosen := attempt.chosen) is None:
            return
        self._in_flight[chosen.replica_id] -= attempt.request.sequences
        if self._in_flight[chosen.replica_id] <= 0:  # replicas come and go
            del self._in_flight[chosen.replica_id]
        self.board.unplaced(attempt.ticket)
        if served_by != chosen.replica_id:
            self._recent.withdraw(attempt.ticket)

    def heard(self, placed: Placed) -> None:
        """Record a placement of another gateway, or of this one."""
        self._recent.add(placed, self._clock())
        self.board.placed(
            placed.ticket,
            placed.slot,
            placed.uncached_tokens,
            placed.sequences,
            adapter=placed.adapter,
            host_tokens=placed.host_tokens,
            disk_tokens=placed.disk_tokens,
            peer_tokens=placed.peer_tokens,
        )

    @property
    def has_work(self) -> bool:
        """Return whether a request is placed, or waits for placement."""
        return bool(self._in_flight) or self.unassigned > 0

    def refresh_demand(self) -> DemandCounters:
        """Return the counters, with the current queues."""
        rooms = self.admission.queue, self.admission.interactive
        self.demand.waiting = sum(map(len, rooms)) + self.unassigned
        self.demand.queued_tokens = sum(waiter.tokens for room in rooms for waiter in room)
        return self.demand

    @property
    def _doubt(self) -> float:
        return DOUBT_ERRORS * self.correction.expected_error

    def take(self, request: SchedulingRequest, considered: Considered, index: int) -> Attempt:
        """Choose the candidate at `index`. The request counts there until the replica reports
        it."""
        ticket = secrets.token_hex(16)
        placement = considered.placement.preferring(index)
        chosen = placement.chosen
        if chosen is None:
            self._unassigned.add(ticket)
            return Attempt(ticket, request, placement, None, self._clock())
        self._policies.took(placement, chosen)
        placed = considered.placed(request, chosen, self.gateway, ticket)
        self._in_flight[chosen.replica_id] += request.sequences
        self.heard(placed)
        self.announce(placed)
        # a guess without loads is no prediction, and a sleeping replica must wake first
        load = self.board.load_of(chosen.replica_id)
        is_telling = placement.policy != BLIND and load is not None and not load.asleep
        work_s = work.expected_s(self.board, request, chosen)
        self.admission.shares.charge(request.tenant, work_s)
        correction = self.correction if is_telling else None
        return Attempt(ticket, request, placement, chosen, self._clock(), correction, work_s)
