"""How the cost of a decision and of an event grows, each over a factor of 100.

    decision   a gateway's time from a prompt's tokens to a replica: segment keys, lookup, ranking.
               With several gateways it includes the placements that the others have announced
               since the last decision
    event      a publisher's time to write an engine's events to Redis: a whole prompt stored

All other values stay as in `BASE`. What an axis has no part in is not measured: no gateway takes
part in an event.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import SchedulingRequest
from benchmarks.harness.fleets import index_pool, own_redis
from benchmarks.harness.fleets.index_pool import board_of
from benchmarks.scale.patience import PATIENT_S, patiently
from router.board.recent import Placed
from router.choice.policies import PlacementRequest
from router.index import slots
from router.index.cached_blocks import CachedBlocks
from router.index.index import PrefixIndex
from router.index.kv_events import BlockRemoved, BlockStored
from router.index.segment_keys import KEY_BYTES, Namespace, SegmentHasher, pack
from router.redis.redis_client import connect

SEGMENT_TOKENS, BLOCK_TOKENS = 128, 16
FACTOR = 100
STEPS = 5
ROUNDS = 15
HASHER = SegmentHasher(b"\0" * 32)
NAMESPACE = Namespace("bench")


@dataclass(frozen=True)
class Size:
    """`blocks`: for events, of 16 tokens that a replica holds; for decisions, of 128 tokens that
    the index holds."""

    prompt_tokens: int = 8_192
    replicas: int = 64
    gateways: int = 1
    blocks: int = 16_384


BASE = Size()
SMALLEST = {"prompt_tokens": 1_024, "replicas": 10, "gateways": 1, "blocks": 4_096}
Call = Callable[[], Awaitable[float]]
Growths = Mapping[str, Sequence[float]]
"""Such as `decision_by_replicas` -> the median seconds at each of `sizes_of(axis)`."""


def sizes_of(axis: str) -> list[int]:
    least = SMALLEST[axis]
    return [round(least * FACTOR ** (step / (STEPS - 1))) for step in range(STEPS)]


def power(growth: str, seconds: Sequence[float]) -> float:
    """The exponent of the power law that fits: 0 is constant, 1 linear."""
    sizes = sizes_of(growth.partition("_by_")[2])
    return statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(s) for s in seconds]
    ).slope


async def measure() -> Growths:
    """Each size on a separate Redis."""
    found = {}
    for cost, (case, axes) in CASES.items():
        for axis in axes:
            seconds = []
            for size in sizes_of(axis):
                with own_redis.unbounded() as url:
                    call = await case(url, replace(BASE, **{axis: size}))
                    taken = [await call() for _ in range(ROUNDS + 1)]
                seconds.append(statistics.median(taken[1:]))
            found[f"{cost}_by_{axis}"] = seconds
    return found


async def decision(url: str, size: Size) -> Call:
    index_pool.fill(url, size.blocks, size.replicas)
    now = 0.0
    scheduler, other = PoolScheduler(lambda: now), PoolScheduler(lambda: now)
    index = PrefixIndex(connect(url, decode=False), index_pool.POOL, PATIENT_S)
    board = board_of(size.replicas)
    other.board.update(board)
    told: list[Placed] = []
    other.announce = told.append
    packed = pack([random.randrange(150_000) for _ in range(size.prompt_tokens)])
    root = HASHER.root(NAMESPACE)
    keys = HASHER.chain(root, packed, SEGMENT_TOKENS)[0]
    index_pool.hold(url, keys, index_pool.depths_of("conversation", len(keys), size.replicas))

    def asked(keys: Sequence[bytes], depths: Mapping[int, int] | None) -> SchedulingRequest:
        return SchedulingRequest(PlacementRequest(size.prompt_tokens, tuple(keys)), depths, now)

    async def call() -> float:
        nonlocal now
        now += 1.0
        for gateway in (scheduler, other):
            gateway.board.update(board)
        told.clear()
        for _ in range(size.gateways - 1):
            fresh = [random.randbytes(KEY_BYTES) for _ in keys]
            other.ended(other.place(asked(fresh, {})), None)
        began = time.perf_counter()
        for placed in told:
            scheduler.heard(placed)
        found = HASHER.chain(root, packed, SEGMENT_TOKENS)[0]
        attempt = scheduler.place(asked(found, await index.lookup(found)))
        taken = time.perf_counter() - began
        scheduler.ended(attempt, None)
        return taken

    return call


async def event(url: str, size: Size) -> Call:
    """The cache is full: the oldest prompt is evicted when another is stored."""
    redis, slot, incarnation = connect(url, decode=False), size.replicas - 1, "bench"
    assert await slots.claim(redis, index_pool.POOL, incarnation, slot) == slot
    writer = (redis, index_pool.POOL, slot, incarnation)
    cached = CachedBlocks(HASHER, "bench", None, SEGMENT_TOKENS)
    blocks = size.prompt_tokens // BLOCK_TOKENS
    names = count()
    held: list[list[bytes | int]] = []

    def stored() -> BlockStored:
        hashes: list[bytes | int] = [next(names) for _ in range(blocks)]
        held.append(hashes)
        tokens = array("H", random.randbytes(2 * BLOCK_TOKENS * blocks)).tolist()
        return BlockStored(hashes, None, tokens, BLOCK_TOKENS, "GPU")

    for _ in range(max(1, size.blocks // blocks)):
        cached.apply([stored()])
        assert await patiently(slots.write_bits, *writer, cached.take_changes().set, [])

    async def call() -> float:
        removed, new = BlockRemoved(held.pop(0)[::-1], "GPU"), stored()
        began = time.perf_counter()
        cached.apply([removed, new])
        changes = cached.take_changes()
        await patiently(slots.write_bits, *writer, changes.set, changes.cleared)
        return time.perf_counter() - began

    return call


CASES: Mapping[str, tuple[Callable[[str, Size], Awaitable[Call]], tuple[str, ...]]] = {
    "decision": (decision, ("prompt_tokens", "replicas", "gateways", "blocks")),
    "event": (event, ("prompt_tokens", "replicas", "blocks")),
}
