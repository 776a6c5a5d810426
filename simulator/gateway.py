"""Requests as a gateway places, admits and refuses them: the code that runs in production.

Placement is `router.placement.place` with the policy `prefix`, its index exact; admission, the
waiting room and overflow are `autoscaling.admission`'s. The gateway sees every replica's queue as
it is: a real board is up to 0.1 s old, but counts what was placed meanwhile. It knows no answer's
length before that has ended.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaling.admission import Admission, Verdict
from autoscaling.waiting import Waiter
from router.cost import Calibration
from router.placement import Placement, place
from router.policies import Candidate, PlacementRequest, make_policy
from router.recent import Placed, Recent, RecentPlacements, announcement
from simulator.fleet import Call, Fleet, Progress, Replica

TENANT = "trace"
KEY_MASK = 2**64 - 1


@dataclass(frozen=True)
class Considered:
    """What a placement would be."""

    placement: Placement
    request: PlacementRequest
    recent: Recent

    @property
    def ranked(self) -> tuple[Candidate, ...]:
        return self.placement.ranked

    @property
    def uncached_tokens(self) -> int:
        """Of its prompt, where most of it is cached."""
        cached = max((candidate.cached_tokens for candidate in self.ranked), default=0)
        return max(0, self.request.prompt_tokens - cached)


class Pool:
    """A fleet and what gateways know of it. `segment_tokens` is 0 where nothing is shared."""

    def __init__(self, fleet: Fleet, segment_tokens: int, seed: int) -> None:
        self.fleet = fleet
        self._segment_tokens = segment_tokens
        self._rng = random.Random(seed)
        self._policy = make_policy("prefix")
        self._recent = RecentPlacements()
        self._calibration = Calibration()

    @property
    def doubt(self) -> float:
        """By how much predictions are off."""
        return self._calibration.error or 0.0

    def consider(self, call: Call, replicas: Sequence[Replica], now: float) -> Considered:
        """These replicas as the request sees them, best first."""
        blocks = call.request.blocks
        held = {r.slot: r.engine.cached_blocks(blocks) for r in replicas} if blocks else {}
        keys = tuple((block & KEY_MASK).to_bytes(8, "big") for block in blocks)
        request = PlacementRequest(call.request.prompt_tokens, keys)
        incarnations = {replica.slot: replica.name for replica in replicas}
        recent = self._recent.about(keys, held, incarnations, now)
        told = [replica.load(self._segment_tokens) for replica in replicas]
        # as a board does
        learned = [load.prefill_rate for load in told if load.prefill_learned]
        rates = learned or [load.prefill_rate for load in told]
        rate = sum(rates) / max(1, len(rates))
        loads = {load.replica_id: replace(load, prefill_rate=rate) for load in told}
        placement = place(request, loads, held, recent, self._policy, self._rng, self._calibration)
        return Considered(placement, request, recent)

    def submit(self, call: Call, considered: Considered, index: int, now: float) -> None:
        chosen = considered.ranked[index]
        [replica] = [r for r in self.fleet.serving if r.slot == chosen.slot]
        confirmed = chosen.confirmed_tokens // max(1, self._segment_tokens)
        placed = Placed(
            gateway="",
            ticket=str(call.number),
            slot=chosen.slot,
            incarnation=chosen.incarnation,
            prompt_tokens=call.request.prompt_tokens,
            uncached_tokens=call.request.prompt_tokens - chosen.cached_tokens,
            predicted_ttft=chosen.predicted_ttft,
            matched=considered.recent.matched,
            announced=announcement(considered.request.keys, confirmed),
        )
        self._recent.add(placed, now)
        call.raw_ttft = chosen.raw_ttft
        replica.submit(call, chosen.cached_tokens, now)

    def learn(self, calls: Sequence[Call]) -> None:
        """They got their first token."""
        for call in calls:
            if call.raw_ttft is not None and call.first_at is not None:
                assert call.placed_at is not None
                self._calibration.observe(call.raw_ttft, call.first_at - call.placed_at)


@dataclass
class Counts:
    """Since the beginning; tokens of prompts."""

    arrived: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    uncached_tokens: int = 0


@dataclass(frozen=True)
class Turn:
    """A batch request that waits for its own; prompt tokens to compute."""

    call: Call
    uncached_tokens: int


class Gateway:
    """As many replicas as there are: a `simulation.Stack`.

    Of the pool's replicas the oldest take traffic, as many as were demanded (all, until then) and
    those that it promoted since; the rest are warm. Without a replica requests wait for one.
    """

    def __init__(self, pool: Pool, admission: Admission, overflow: Pool | None = None) -> None:
        self._pool = pool
        self._overflow = overflow
        self._admission = admission
        self._held: list[Call] = []
        self._demand: int | None = None
        self.counts = Counts()
        self.promoted = 0

    @property
    def waiting(self) -> int:
        return len(self._held) + len(self._admission.room)

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens to compute for those who wait for their turn."""
        return sum(waiter.what.uncached_tokens for waiter in self._admission.room)

    @property
    def active(self) -> int:
        return len(self._taking_traffic())

    def tick(self, now: float) -> Mapping[str, float | str]:
        return {}

    def demand(self, replicas: int) -> None:
        """What an autoscaler decided that knew of all promotions."""
        self._demand, self.promoted = replicas, 0

    def arrive(self, call: Call, now: float) -> None:
        considered = self._consider(call, now)
        lost = self._admission.is_lost(0.0, considered.ranked, self._pool.doubt)
        if lost and call.priority == "interactive" and self._promote():
            considered = self._consider(call, now)
        self.counts.arrived += 1
        self.counts.prompt_tokens += call.request.prompt_tokens
        self.counts.uncached_tokens += considered.uncached_tokens
        if not considered.ranked:
            self._held.append(call)
            return
        elsewhere = None
        if self._overflow is not None:
            elsewhere = self._overflow.consider(call, self._overflow.fleet.serving, now)
        verdict = self._admission.decide(
            call.priority,
            0.0,
            considered.ranked,
            elsewhere.ranked if elsewhere else None,
            now,
            doubt=self._pool.doubt,
        )
        self._follow(verdict, call, considered, elsewhere, now)

    def progressed(self, progress: Progress, now: float) -> None:
        """The pool's replicas went on; whoever can go goes."""
        self._pool.learn(progress.first_tokens)
        if self._held and self._pool.fleet.serving:
            held, self._held = self._held, []
            for call in held:
                self._pool.submit(call, self._consider(call, now), 0, now)
        room = self._admission.room
        while self._pool.fleet.serving and (waiter := room.next()) is not None:
            call = waiter.what.call
            considered = self._consider(call, now)
            index = self._admission.may_leave(now - waiter.since, considered.ranked)
            if index is None:
                return
            room.leave(waiter)
            self._pool.submit(call, considered, index, now)

    def _consider(self, call: Call, now: float) -> Considered:
        return self._pool.consider(call, self._taking_traffic(), now)

    def _taking_traffic(self) -> list[Replica]:
        serving = self._pool.fleet.serving
        return serving if self._demand is None else serving[: max(1, self._demand + self.promoted)]

    def _promote(self) -> bool:
        if self.active >= len(self._pool.fleet.serving):
            return False
        self.promoted += 1
        return True

    def _follow(
        self,
        verdict: Verdict,
        call: Call,
        considered: Considered,
        elsewhere: Considered | None,
        now: float,
    ) -> None:
        if verdict.kind == "admit":
            self._pool.submit(call, considered, verdict.index, now)
        elif verdict.kind == "overflow":
            assert self._overflow is not None
            assert elsewhere is not None
            call.overflowed = True
            self.counts.refused += 1
            self._overflow.submit(call, elsewhere, verdict.index, now)
        elif verdict.kind == "wait":
            best = min(considered.ranked, key=lambda candidate: candidate.raw_ttft)
            turn = Turn(call, call.request.prompt_tokens - best.cached_tokens)
            work_s = max(0.0, best.raw_ttft - best.wait)
            self._admission.room.enter(Waiter(turn, TENANT, work_s, now))
        else:
            call.rejected_at = now
            self.counts.refused += 1
