"""Gateways on simulated engines: one `PoolScheduler`, the scheduler of production.

Its board contains every replica's exact queue (a real one is up to 0.1 s old, but counts the
requests placed meanwhile). Its index is the engines' caches. It does not know the length of an
answer before its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import (
    Attempt,
    Computed,
    Considered,
    Decision,
    PoolSettings,
    SchedulingRequest,
)
from autoscaling.admission.waiting import Waiter
from router.board.active import Active
from router.board.load import ReplicaLoad
from router.board.recent import NO_TIERS, Recent, TierDepths
from router.choice.cost import Elsewhere
from router.choice.placement import Placement, reusable_tokens
from router.choice.policies import Candidate, PlacementRequest
from simulator.cache.kv_tiers import HasBlock, RequestedLoads
from simulator.fleet import Call, Progress, Replica, SimulatedFleet

KEY_MASK = 2**64 - 1


def _exactly(load: ReplicaLoad) -> ReplicaLoad:
    return load


class ScheduledFleet:
    """A fleet and the scheduler of its pool. `segment_tokens` is 0 if nothing is shared. `report`
    is what the scheduler receives of a replica's load. `prefill` computes prompts for it."""

    def __init__(
        self,
        fleet: SimulatedFleet,
        settings: PoolSettings,
        segment_tokens: int,
        seed: int,
        overflow: ScheduledFleet | None = None,
        report: Callable[[ReplicaLoad], ReplicaLoad] = _exactly,
        prefill: PromptPool | None = None,
    ) -> None:
        self.fleet = fleet
        self.prefill = prefill
        self._report = report
        self.overflow = overflow
        self.segment_tokens = segment_tokens
        self._now = 0.0
        elsewhere: PoolScheduler | None = overflow.scheduler if overflow else None
        self.scheduler: PoolScheduler = PoolScheduler(
            lambda: self._now, settings, elsewhere, random.Random(seed)
        )

    def look(self, now: float, active: int | None = None) -> None:
        """Update the scheduler with the replicas' load; the oldest `active` take traffic."""
        self._now = now
        if self.prefill is not None:
            self.prefill.pool.look(now)
        loads = [self._report(replica.load(self.segment_tokens)) for replica in self.fleet.serving]
        self.scheduler.board.update(loads, None if active is None else Active(active))

    def request(self, call: Call) -> SchedulingRequest:
        """Return the request in the form of a gateway: blocks of 64 bits are the segments, each
        replica's cache and tiers the index."""
        blocks = call.request.blocks
        serving = self.fleet.serving if blocks else []
        keys = tuple((block & KEY_MASK).to_bytes(8, "big") for block in blocks)
        depths = {replica.slot: replica.engine.cached_blocks(blocks) for replica in serving}
        return SchedulingRequest(
            prompt=PlacementRequest(
                call.request.prompt_tokens,
                keys,
                elsewhere=self.prefill.offer(call) if self.prefill and blocks else None,
            ),
            depths=depths,
            arrived=call.request.at,
            tenant=call.request.tenant,
            priority=call.priority,
            tiers=NO_TIERS
            if self.fleet.tiers is None
            else tier_depths(serving, blocks, depths, self.fleet.tiers.peers),
        )

    def submit(self, call: Call, attempt: Attempt) -> None:
        """Send a request to its chosen replica."""
        chosen = attempt.chosen
        assert chosen is not None
        call.attempt, call.placed_at = attempt, self._now
        source = None
        if chosen.pulls:
            [source] = [r.serves for r in self.fleet.serving if r.name == chosen.peer_id]
        if chosen.prefills_elsewhere and self.prefill is not None:
            self.prefill.compute(call)
        else:
            self._send(call, attempt, chosen, source)

    def advance_prompts(self, now: float) -> list[Call]:
        """Send the requests whose prompts the prefill pool has computed. Return those whose replica
        has left meanwhile."""
        if self.prefill is None:
            return []
        self._now = now
        left = []
        for call, source in self.prefill.advance(now):
            attempt = call.attempt
            assert attempt is not None
            assert attempt.chosen is not None
            if any(replica.slot == attempt.chosen.slot for replica in self.fleet.serving):
                self._send(call, attempt, attempt.chosen, source.serves)
            else:
                self.scheduler.ended(attempt, None)
                left.append(call)
        return left

    def _send(
        self, call: Call, attempt: Attempt, chosen: Candidate, source: HasBlock | None
    ) -> None:
        [replica] = [r for r in self.fleet.serving if r.slot == chosen.slot]
        placed_at = call.placed_at
        loads = RequestedLoads.of(chosen, source)
        replica.submit(call, chosen.cached_tokens, self._now, loads)
        call.placed_at = placed_at
        # the next look finds it at the replica
        self.scheduler.board.unplaced(attempt.ticket)

    def learn(self, progress: Progress) -> None:
        for call in progress.first_tokens:
            if call.attempt is not None:
                assert call.placed_at is not None
                assert call.first_at is not None
                self.scheduler.observed(call.attempt, call.first_at - call.placed_at)
        for call in progress.finished:
            if call.attempt is not None and call.replica is not None:
                assert call.first_at is not None
                assert call.ended_at is not None
                computed = Computed(None, call.ended_at - call.first_at)
                self.scheduler.ended(call.attempt, call.replica.name, computed)


class PromptPool:
    """The pool that computes prompts for another one: all of at least one segment (`always`), or
    those whose predicted TTFT is then lower."""

    def __init__(self, pool: ScheduledFleet, always: bool) -> None:
        self.pool = pool
        self._always = always
        # by the call that computes the prompt
        self._waiting: dict[Call, Call] = {}

    @property
    def waiting(self) -> int:
        """The number of requests whose prompts are being computed."""
        return len(self._waiting)

    def offer(self, call: Call) -> Elsewhere | None:
        """Return the replica that would compute a prompt now; None without one."""
        ranked = self.pool.scheduler.consider(self.pool.request(call)).ranked
        if not ranked:
            return None
        best = ranked[0]
        tokens = reusable_tokens(call.request.prompt_tokens, self.pool.segment_tokens)
        name, ready_s = best.replica_id, best.predicted_ttft_s
        return Elsewhere(name, name, tokens, ready_s, self._always)

    def compute(self, call: Call) -> None:
        """Compute the prompt of a request."""
        prompt = Call(call.number, replace(call.request, answer_tokens=1))
        self._waiting[prompt] = call
        self.pool.submit(prompt, self.pool.scheduler.place(self.pool.request(prompt)))

    def advance(self, now: float) -> list[tuple[Call, Replica]]:
        """Return the requests whose prompts have been computed since, each with the replica that
        has the prompt."""
        progress = self.pool.fleet.advance(now)
        self.pool.learn(progress)
        computed = []
        for prompt in progress.finished:
            assert prompt.replica is not None
            computed.append((self._waiting.pop(prompt), prompt.replica))
        return computed


def tier_depths(
    replicas: Sequence[Replica], blocks: Sequence[int], cached: Mapping[int, int], peers: bool
) -> TierDepths:
    """Return the leading blocks in the tiers of replicas, without replicas whose tiers have none
    after the `cached` ones. With `peers`, others may need what such a replica has in its host
    tier."""
    host, disk = {}, {}
    for replica in replicas:
        before = cached[replica.slot]
        in_host, on_disk = replica.engine.tier_depths(blocks, before)
        if in_host > (0 if peers else before):
            host[replica.slot] = in_host
        if on_disk > before:
            disk[replica.slot] = on_disk
    return TierDepths(host, disk)


class SimulatedGateway:
    """A gateway over all existing replicas: a `simulation.Stack`.

    The oldest replicas take traffic: the demanded number (all, until the first demand), and those
    promoted since. The others are warm. Without a replica, requests wait for one.
    """

    def __init__(self, pool: ScheduledFleet) -> None:
        self._pool = pool
        self._unassigned: list[tuple[Call, Attempt]] = []
        self._turns: dict[Waiter[SchedulingRequest], Call] = {}
        self._demand: int | None = None
        self.promoted = 0

    @property
    def waiting(self) -> int:
        prompts = self._pool.prefill.waiting if self._pool.prefill is not None else 0
        return self._pool.scheduler.refresh_demand().waiting + prompts

    @property
    def active(self) -> int:
        serving = len(self._pool.fleet.serving)
        return serving if self._demand is None else min(serving, self._most_active)

    def tick(self, now: float) -> Mapping[str, float | str]:
        return {}

    def demand(self, replicas: int) -> None:
        """Apply the demand of an autoscaler that knew all promotions."""
        self._demand, self.promoted = replicas, 0

    def arrive(self, call: Call, now: float) -> None:
        scheduler = self._pool.scheduler
        self._look(now)
        request = self._pool.request(call)
        considered = scheduler.consider(request)
        if not self._pool.fleet.serving:  # a real gateway would try the last known replicas
            considered = Considered(Placement(()), Recent())
        if scheduler.needs_warm(request, considered):
            self.promoted += 1
            self._look(now)
            considered = scheduler.consider(request)
        self._follow(call, scheduler.decide(request, considered))

    def progressed(self, progress: Progress, now: float) -> None:
        """Process the progress of the replicas, and place every request that can be placed."""
        scheduler = self._pool.scheduler
        self._pool.learn(progress)
        for call in self._pool.advance_prompts(now):
            self._look(now)
            self._go(call, scheduler.place(self._pool.request(call)))
        if self._unassigned and self._pool.fleet.serving:
            unassigned, self._unassigned = self._unassigned, []
            for call, attempt in unassigned:
                scheduler.ended(attempt, None)
                self._look(now)
                self._go(call, scheduler.place(self._pool.request(call)))
        while self._pool.fleet.serving and self._turns:
            self._look(now)
            if (turn := scheduler.next_turn()) is None:
                return
            waiter, attempt = turn
            self._go(self._turns.pop(waiter), attempt)

    @property
    def _most_active(self) -> int:
        return max(1, (self._demand or 0) + self.promoted)

    def _look(self, now: float) -> None:
        self._pool.look(now, None if self._demand is None else self._most_active)
        if self._pool.overflow is not None:
            self._pool.overflow.look(now)

    def _follow(self, call: Call, decision: Decision) -> None:
        kind = decision.verdict.kind
        if decision.evicted is not None:
            self._refuse(self._turns.pop(decision.evicted))
        if decision.attempt is not None:
            self._go(call, decision.attempt)
        elif decision.waiter is not None:
            self._turns[decision.waiter] = call
        elif kind == "overflowed" and (overflow := self._pool.overflow) is not None:
            request, scheduler = overflow.request(call), overflow.scheduler
            final = scheduler.stand_in(request, self._pool.scheduler, decision)
            if final.attempt is not None:
                call.overflowed = True
                overflow.submit(call, final.attempt)
            else:
                self._refuse(call)
        else:
            self._refuse(call)

    def _refuse(self, call: Call) -> None:
        call.rejected_at = call.request.at

    def _go(self, call: Call, attempt: Attempt) -> None:
        if attempt.chosen is None:
            self._unassigned.append((call, attempt))
        else:
            self._pool.submit(call, attempt)
