"""Antefix's gateways and the replicas' publishers in virtual time, over a real Redis.

Each gateway has a separate scheduler, load board and index, as a gateway process has. It reads the
board every READ_PERIOD_S, at another moment than the others, from snapshots of that age. Other
gateways' placements arrive HEARD_AFTER_S after they were made. Each prompt is looked up in Redis,
where publishers write the engines' KV events. Not simulated: leases (`redis_load` measures them),
and the 5 ms in which a publisher gathers events.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from benchmarks.scale.fleet import Router, SimulatedReplicas, Visit
from benchmarks.scale.patience import PATIENT_S, patiently
from benchmarks.scale.traffic import tokens_of
from router.board.load import UNSEEN_S, LoadReport, ReplicaLoad
from router.board.load_reader import READ_PERIOD_S
from router.board.recent import Placed, TierDepths
from router.choice.policies import PlacementRequest
from router.index import slots
from router.index.cached_blocks import MAIN_MEDIUM, CachedBlocks, Tier, tier_key
from router.index.index import PrefixIndex
from router.index.kv_events import BlockStored, KvEvent
from router.index.segment_keys import Namespace, SegmentHasher
from router.redis.redis_client import AsyncRedis, connect
from simulator.cache.kv_tiers import ALL_LOADS, RequestedLoads
from simulator.traces import Request

MODEL = "simulated"
HEARD_AFTER_S = 0.003


class _Publisher:
    """One replica's part of the index, written before the next lookup. `sequence`: of its latest
    report. `arrived`: when it got which tickets."""

    def __init__(
        self,
        redis: AsyncRedis,
        pool: str,
        hasher: SegmentHasher,
        tokens: int,
        tiers: Sequence[Tier],
    ) -> None:
        self._redis = redis
        self._pool = pool
        self._block_tokens = tokens
        self._cached = CachedBlocks(hasher, MODEL, None, tokens, tiers=tiers)
        self._events: list[KvEvent] = []
        self._written = 0
        self.slot = 0
        self.incarnation = ""
        self.sequence = 0
        self.arrived: deque[tuple[float, str]] = deque()

    async def claim(self, slot: int) -> None:
        self.incarnation = f"{slot:016x}"
        self.slot = await patiently(slots.claim, self._redis, self._pool, self.incarnation, slot)

    def told(self, events: Sequence[KvEvent]) -> None:
        self._events += events

    async def write(self) -> None:
        events, self._events = self._events, []
        self._cached.apply([self._with_tokens(event) for event in events])
        changes = self._cached.take_changes()
        if not (changes.set or changes.cleared):
            return
        of = (self._redis, self._pool, self.slot, self.incarnation)
        batches = (changes.set, changes.cleared, self._written + 1)
        assert await patiently(slots.write_bits, *of, *batches), "another incarnation has the slot"
        self._written += slots.batch_count(changes.set, changes.cleared)

    def _with_tokens(self, event: KvEvent) -> KvEvent:
        if not isinstance(event, BlockStored) or event.medium != MAIN_MEDIUM:
            return event
        packed = b"".join(tokens_of(int(h), self._block_tokens) for h in event.block_hashes)
        return msgspec.structs.replace(event, token_ids=array("I", packed).tolist())


@dataclass(eq=False)
class _IndexedGateway:
    scheduler: PoolScheduler
    index: PrefixIndex
    offset_s: float
    read_at: float = -1.0
    # how many of all announcements it has heard
    heard: int = 0


class IndexedGateways(Router):
    """`decision_s`: real seconds that each decision took, from segment keys to a replica."""

    ticks: bool = True

    def __init__(
        self, url: str, pool: str, replicas: SimulatedReplicas, gateways: int, seed: int
    ) -> None:
        self._replicas = replicas
        self._block_tokens = replicas.hardware.block_tokens
        self._hasher = SegmentHasher(random.Random(seed).randbytes(32))
        self._root = self._hasher.root(Namespace(MODEL))
        self._now = 0.0
        self._redis = connect(url, decode=False)
        self._pool = pool
        self._tiers = () if replicas.tiers is None else (Tier.HOST, Tier.DISK)
        self._publishers = [
            _Publisher(self._redis, pool, self._hasher, self._block_tokens, self._tiers)
            for _ in range(len(replicas))
        ]
        self._dirty: set[int] = set()
        self._gateways = [self._gateway(n, gateways, seed) for n in range(gateways)]
        self._announced: list[tuple[float, int, Placed]] = []
        self._attempts: dict[int, Attempt] = {}
        self._snapshots: deque[tuple[float, list[ReplicaLoad]]] = deque(maxlen=2)
        self.decision_s: list[float] = []

    async def begin(self) -> None:
        for slot, publisher in enumerate(self._publishers):
            await publisher.claim(slot)

    async def aclose(self) -> None:
        for gateway in self._gateways:
            await gateway.index.aclose()
        await self._redis.aclose()

    async def choose(self, number: int, request: Request, gateway: int, now: float) -> int:
        await asyncio.gather(*(self._publishers[replica].write() for replica in self._dirty))
        self._dirty.clear()
        here = self._gateways[gateway]
        self._catch_up(gateway, here, now)
        packed = b"".join(tokens_of(b, self._block_tokens) for b in request.blocks)
        began = time.perf_counter()
        keys, _ = self._hasher.chain(self._root, packed, self._block_tokens)
        depths, *found = await asyncio.gather(
            here.index.lookup(keys),
            *(here.index.lookup([tier_key(key, tier) for key in keys]) for tier in self._tiers),
        )
        prompt = PlacementRequest(request.prompt_tokens, tuple(keys))
        tiers = TierDepths(*(each or {} for each in found))
        attempt = here.scheduler.place(SchedulingRequest(prompt, depths, now, tiers=tiers))
        self.decision_s.append(time.perf_counter() - began)
        assert attempt.chosen is not None
        self._attempts[number] = attempt
        return attempt.chosen.slot

    def expected_cached(self, number: int) -> int:
        chosen = self._attempts[number].chosen
        return chosen.cached_tokens if chosen else 0

    def loads(self, number: int) -> RequestedLoads:
        chosen = self._attempts[number].chosen
        return RequestedLoads.of(chosen) if chosen else ALL_LOADS

    def tick(self, now: float) -> None:
        loads = [self._load(replica, now) for replica in range(len(self._replicas))]
        self._snapshots.append((now, loads))

    def told(self, replica: int, events: Sequence[KvEvent]) -> None:
        self._publishers[replica].told(events)
        self._dirty.add(replica)

    def submitted(self, visit: Visit, now: float) -> None:
        ticket = self._attempts[visit.number].ticket
        self._publishers[visit.replica].arrived.append((now, ticket))

    def answering(self, visit: Visit, now: float) -> None:
        self._now = now
        attempt = self._attempts[visit.number]
        publisher = self._publishers[visit.replica]
        publisher.sequence += 1
        queue = self._replicas.engines[visit.replica].load()["queue"]
        report = LoadReport(publisher.sequence, queue)
        scheduler = self._gateways[visit.gateway].scheduler
        scheduler.answered(attempt, _name(visit.replica), report)
        scheduler.observed(attempt, now - attempt.placed_at)
        self._attempts[visit.number] = attempt.answering()

    def ended(self, visit: Visit) -> None:
        self._now = visit.ended_at
        attempt = self._attempts.pop(visit.number)
        self._gateways[visit.gateway].scheduler.ended(attempt, _name(visit.replica))

    def _gateway(self, number: int, gateways: int, seed: int) -> _IndexedGateway:
        rng = random.Random(f"scheduler/{number}/{seed}")
        scheduler = PoolScheduler(lambda: self._now, rng=rng)
        scheduler.announce = partial(self._announce, number)
        index = PrefixIndex(self._redis, self._pool, PATIENT_S)
        return _IndexedGateway(scheduler, index, READ_PERIOD_S * number / gateways)

    def _announce(self, gateway: int, placed: Placed) -> None:
        if len(self._gateways) > 1:
            self._announced.append((self._now + HEARD_AFTER_S, gateway, placed))

    def _catch_up(self, number: int, gateway: _IndexedGateway, now: float) -> None:
        """Apply what it has read and received until now, in order."""
        for at, loads in self._snapshots:
            # a gateway gets no request before it has read the board once
            read_at = at if gateway.read_at < 0.0 else at + gateway.offset_s
            if gateway.read_at < read_at <= now:
                self._hear(number, gateway, read_at)
                gateway.read_at = self._now = read_at
                gateway.scheduler.board.update(loads)
        self._hear(number, gateway, now)
        self._now = now

    def _hear(self, number: int, gateway: _IndexedGateway, until: float) -> None:
        while gateway.heard < len(self._announced):
            at, teller, placed = self._announced[gateway.heard]
            if at > until:
                return
            gateway.heard += 1
            if teller != number:
                self._now = at
                gateway.scheduler.heard(placed)

    def _load(self, replica: int, now: float) -> ReplicaLoad:
        publisher = self._publishers[replica]
        publisher.sequence += 1
        while publisher.arrived and publisher.arrived[0][0] < now - UNSEEN_S:
            publisher.arrived.popleft()
        return ReplicaLoad(
            replica_id=_name(replica),
            slot=publisher.slot,
            incarnation=publisher.incarnation,
            url="",
            node_ip="",
            sequence=publisher.sequence,
            arrived=tuple(ticket for _, ticket in publisher.arrived),
            **self._replicas.engines[replica].load(self._block_tokens),
        )


def _name(replica: int) -> str:
    return f"r{replica:04}"
