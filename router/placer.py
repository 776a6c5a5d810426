"""One pool as one gateway places requests in it: what is known, one decision, what came of it.

The decision is `placement.place`; this holds what it is made from: the load board, the index,
what all gateways placed lately, and what was learned of predictions. While Redis is away it
decides from load alone, then from who was last known. Nothing here fails a request: `look_up`
keeps to its budget, `place` may answer "anyone".
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from router.cost import Calibration
from router.index import Depths, PrefixIndex
from router.load import LoadBoard, LoadReport
from router.placed_stream import PlacedStream
from router.placement import Placement, place, place_blind
from router.policies import Candidate, PlacementRequest, Policy, make_policy
from router.recent import Placed, Recent, RecentPlacements, announcement
from router.redis_client import AsyncRedis
from router.sweeper import Sweeper


@dataclass(frozen=True)
class Considered:
    """What a placement would be, counted nowhere yet; `placement` ranks the replicas."""

    placement: Placement
    request: PlacementRequest
    held: Depths
    recent: Recent


@dataclass(frozen=True)
class Attempt:
    """One placement that is under way: `chosen` is None when any replica may serve it."""

    ticket: str
    placement: Placement
    chosen: Candidate | None


class Placer:
    """`text` decodes its replies, `binary` does not. `board`, `index`, `calibration`: to read.

    `scaled`: not all of the pool's replicas take traffic (`LoadBoard`).
    """

    def __init__(
        self,
        text: AsyncRedis,
        binary: AsyncRedis,
        pool: str,
        policy: str,
        shadow_policy: str | None,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
        scaled: bool = False,
    ) -> None:
        self._clock = clock
        self._gateway = secrets.token_hex(8)
        self._default_policy = policy
        self._policies: dict[str, Policy] = {}
        self._shadow = make_policy(shadow_policy) if shadow_policy else None
        self._rng = random.Random()
        self._recent = RecentPlacements()
        self._stream = PlacedStream(binary, pool, self._gateway, self._others_placed)
        self._sweeper = Sweeper(text, pool)
        self._in_flight: Counter[str] = Counter()
        self.board = LoadBoard(text, pool, clock, scaled)
        self.index = PrefixIndex(binary, pool, budget_s, clock)
        self.calibration = Calibration()

    async def run(self) -> None:
        """Keep what is known current until cancelled."""
        parts = (self.board, self.index, self._stream, self._sweeper)
        await asyncio.gather(*(part.run() for part in parts))

    @property
    def segment_tokens(self) -> int:
        """What the pool's replicas publish under; 0: none of them caches prefixes."""
        loads = self.board.loads() or self.board.last_known()
        sizes = Counter(load.segment_tokens for load in loads.values())
        return max(sizes, key=lambda size: (sizes[size], size), default=0)

    async def look_up(self, keys: Sequence[bytes]) -> Depths | None:
        """Leading segments held, by slot; None without an answer within the budget."""
        return await self.index.lookup(keys)

    def place(
        self,
        request: PlacementRequest,
        held: Depths | None,
        avoid: Iterable[str] = (),
        policy: str | None = None,
    ) -> Attempt:
        """`consider`, and take the best."""
        return self.take(self.consider(request, held, avoid, policy))

    def consider(
        self,
        request: PlacementRequest,
        held: Depths | None,
        avoid: Iterable[str] = (),
        policy: str | None = None,
    ) -> Considered:
        """Rank the replicas for a request. Raises ValueError for a policy that does not exist."""
        avoided = frozenset(avoid)
        loads = {r: load for r, load in self.board.loads().items() if r not in avoided}
        recent = Recent()
        if loads:
            incarnations = {load.slot: load.incarnation for load in loads.values()}
            recent = self._recent.about(request.keys, held or {}, incarnations, self._clock())
            placement = place(
                request,
                loads,
                held,
                recent,
                self._policy(policy or self._default_policy),
                self._rng,
                self.calibration,
                self._shadow,
            )
        else:
            known = {r: load for r, load in self.board.last_known().items() if r not in avoided}
            placement = place_blind(request, known, self._in_flight, self._rng)
        return Considered(placement, request, held or {}, recent)

    def take(self, considered: Considered, index: int = 0) -> Attempt:
        """Choose the candidate at `index`: it counts there until it is seen there.

        What was considered must be fresh: nothing may have been placed since.
        """
        ticket = secrets.token_hex(16)
        placement = considered.placement.preferring(index)
        if (chosen := placement.chosen) is not None:
            self._in_flight[chosen.replica_id] += 1
            self._tell(ticket, considered, chosen)
        return Attempt(ticket, placement, chosen)

    def ended(self, attempt: Attempt, served_by: str | None) -> None:
        """The attempt is over: served by that replica, or (None) not at all."""
        if (chosen := attempt.chosen) is None:
            return
        self._in_flight[chosen.replica_id] -= 1
        self.board.unplaced(attempt.ticket)
        if served_by != chosen.replica_id:
            self._recent.withdraw(attempt.ticket)

    def answered(self, attempt: Attempt, replica_id: str, report: LoadReport | None) -> None:
        """The first token came from that replica, and with it how busy it is."""
        self.board.unplaced(attempt.ticket)
        if report is not None:
            self.board.reported(replica_id, report)

    def observed(self, candidate: Candidate, ttft: float) -> None:
        """A request got its first token `ttft` seconds after it came to the gateway."""
        self.calibration.observe(candidate.raw_ttft, ttft)

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            self._policies[name] = make_policy(name)
        return self._policies[name]

    def _tell(self, ticket: str, considered: Considered, chosen: Candidate) -> None:
        request = considered.request
        confirmed = considered.held.get(chosen.slot, 0)
        placed = Placed(
            gateway=self._gateway,
            ticket=ticket,
            slot=chosen.slot,
            incarnation=chosen.incarnation,
            prompt_tokens=request.prompt_tokens,
            uncached_tokens=max(0, request.prompt_tokens - chosen.cached_tokens),
            predicted_ttft=chosen.predicted_ttft,
            matched=considered.recent.matched,
            # all that is not in the index: another's announcement of it may be withdrawn
            announced=announcement(request.keys, confirmed),
        )
        self._count(placed, self._clock())
        self._stream.append(placed)

    def _others_placed(self, placed: Placed) -> None:
        self._count(placed, self._clock())

    def _count(self, placed: Placed, now: float) -> None:
        self._recent.add(placed, now)
        self.board.placed(placed.ticket, placed.slot, placed.uncached_tokens)
