"""What the prefix index costs: make bench-index

Two Redis servers of its own over loopback TCP: one with a pool of 64 replicas, one with 1,000
replicas and 2.5 million segments. All lookups are measured in turn, round after round, in the
event loop that Ray Serve's replicas have (uvloop), on cores that never halt, and once more the
smallest where they do; `benchmarks/stand/index_pool.py` tells what prompts hold.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import uvloop

from autoscaling.pool_scheduler import PoolScheduler
from autoscaling.scheduling import Attempt, SchedulingRequest
from benchmarks.index import publishing
from benchmarks.stand import index_pool, own_redis, report
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.index_pool import PATIENT_S, SEGMENT_TOKENS, SMALL, board_of
from benchmarks.stand.options import parser_of
from common.percentiles import percentile
from router.index import BUDGET_S, PrefixIndex
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.redis_client import AsyncRedis, connect
from router.segment_keys import Namespace, SegmentHasher, index_secret

LARGE = 1_000
PROMPTS = (256, 1_024)
FILLED_SEGMENTS = 2_500_000
ROUNDS = 50
WARMUP = 2
# Calls of one case before the next has its turn.
TURN = 20

LOOKUP_GOAL_MS = {256: 0.2, 1_024: 0.8}
LARGE_FACTOR = 2
PLACEMENT_GOAL_MS = 0.5
# Linux runs such a process only while no other wants its core.
SPIN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""
EVENTS_GOAL = 100_000
PUBLISHER_RUNS = 3


@dataclass(frozen=True)
class Results:
    """What is reported: figures by name, and those that have a goal beside it."""

    figures: dict[str, float]
    goals: dict[str, object]


@dataclass(frozen=True)
class Case:
    """`name` is None for what must be done now and then but is not measured. `undo` gets
    each call's result, outside the time that is measured."""

    name: str | None
    call: Callable[[], Awaitable[object]]
    turn: int = TURN
    goal_ms: float | None = None
    undo: Callable[[Any], None] = lambda _: None


def lookup_cases(url: str, index: PrefixIndex, replicas: int) -> list[Case]:
    floor = partial(index.lookup, index_pool.prompt_keys(1))
    cases = [Case(f"lookup_1_segment_{replicas}_replicas_cold", floor)]
    for segments in PROMPTS:
        goal = LOOKUP_GOAL_MS[segments] * (LARGE_FACTOR if replicas == LARGE else 1)
        for mix in index_pool.MIXES:
            keys = index_pool.prompt_keys(segments)
            index_pool.hold(url, keys, index_pool.depths_of(mix, segments, replicas))
            name = f"lookup_{segments}_segments_{replicas}_replicas_{mix}"
            limit = goal if mix == "conversation" else None
            cases.append(Case(name, partial(index.lookup, keys), goal_ms=limit))
    return cases


def placement_cases(url: str, scheduler: PoolScheduler, feeds: PoolFeeds) -> list[Case]:
    """A prompt of 32,768 tokens on a board of 64 replicas, from its keys and from its tokens."""
    tokens = [random.randrange(150_000) for _ in range(256 * SEGMENT_TOKENS)]
    hasher = SegmentHasher(index_secret("bench"))
    namespace = Namespace("bench")
    keys = hasher.keys(namespace, tokens, SEGMENT_TOKENS)
    index_pool.hold(url, keys, index_pool.depths_of("conversation", len(keys), SMALL))
    board = board_of(SMALL)
    scheduler.board.update(board)

    async def from_keys(keys: list[bytes]) -> Attempt:
        depths = await feeds.look_up(keys)
        prompt = PlacementRequest(len(tokens), tuple(keys))
        return scheduler.place(SchedulingRequest(prompt, depths, 0.0))

    async def from_tokens() -> Attempt:
        return await from_keys(hasher.keys(namespace, tokens, SEGMENT_TOKENS))

    def forget(attempt: Attempt) -> None:
        scheduler.ended(attempt, served_by=None)

    async def read_board() -> None:
        scheduler.board.update(board)

    return [
        Case(None, read_board, turn=1),
        Case(
            "placement_from_keys",
            partial(from_keys, keys),
            goal_ms=PLACEMENT_GOAL_MS,
            undo=forget,
        ),
        Case("placement_from_tokens", from_tokens, undo=forget),
    ]


@contextmanager
def cores_awake() -> Iterator[None]:
    """Cores that have nothing to do spin. In a virtual machine one that halts is woken by its host,
    which takes tens of microseconds for each reply that is waited for."""
    with ExitStack() as stack:
        for core in os.sched_getaffinity(0):
            spinning = subprocess.Popen([sys.executable, "-c", SPIN, str(core)])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        yield


async def in_turn(cases: list[Case]) -> dict[str, list[float]]:
    """Seconds of each call; the cases take turns, in another order each round."""
    seconds: dict[str, list[float]] = {case.name: [] for case in cases if case.name}
    for number in range(-WARMUP, ROUNDS):
        for case in random.sample(cases, len(cases)):
            for _ in range(case.turn):
                began = time.perf_counter()
                result = await case.call()
                taken = time.perf_counter() - began
                case.undo(result)
                if number >= 0 and case.name:
                    seconds[case.name].append(taken)
    return seconds


def tell(cases: list[Case], seconds: dict[str, list[float]], results: Results) -> None:
    """Print the table, and put every figure where it is reported."""
    print(f"{'':<51} {'p50 ms':>8} {'p99 ms':>8} {'>5 ms':>6} {'goal':>5}")
    for case in cases:
        if case.name is None:
            continue
        taken = seconds[case.name]
        p50, p99 = (1000 * percentile(taken, percent) for percent in (50, 99))
        late = sum(s > BUDGET_S for s in taken) / len(taken)
        results.figures[f"{case.name}_ms_p50"] = round(p50, 3)
        results.figures[f"{case.name}_ms_p99"] = round(p99, 3)
        if case.goal_ms is not None:
            goal = report.goal(p50, at_most=case.goal_ms)
            results.goals[f"{case.name}_ms_p50"] = goal
        print(f"{case.name:<51} {p50:8.3f} {p99:8.3f} {late:6.1%} {case.goal_ms or '':>5}")


async def measure_lookups(small_url: str, large_url: str, results: Results) -> None:
    async with AsyncExitStack() as stack:

        def client(url: str) -> AsyncRedis:
            made = connect(url, decode=False)
            stack.push_async_callback(made.aclose)
            return made

        small = PrefixIndex(client(small_url), index_pool.POOL, PATIENT_S)
        large = PrefixIndex(client(large_url), index_pool.POOL, PATIENT_S)
        scheduler, feeds = index_pool.placing(small_url, stack)
        for index in (small, large):
            stack.push_async_callback(index.aclose)
        cases = [
            *lookup_cases(small_url, small, SMALL),
            *lookup_cases(large_url, large, LARGE),
            *placement_cases(small_url, scheduler, feeds),
        ]
        with cores_awake():
            tell(cases, await in_turn(cases), results)
        (smallest, *_) = cases
        halting = [replace(smallest, name=f"{smallest.name}_where_cores_halt")]
        tell(halting, await in_turn(halting), results)


async def measure_publishing(url: str, results: Results) -> None:
    client = connect(url)
    try:
        for replicas in (SMALL, LARGE):
            board = f"bench/{replicas}"
            size = await index_pool.bytes_per_segment(client, url, board, replicas)
            results.figures[f"bytes_per_segment_{replicas}_replicas"] = round(size)
        events = [await publishing.block_events_per_second(client) for _ in range(PUBLISHER_RUNS)]
    finally:
        await client.aclose()
    rate = statistics.median(events)
    results.figures["published_block_events_per_s"] = round(rate)
    results.goals["published_block_events_per_s"] = report.goal(rate, at_least=EVENTS_GOAL)


@stopped_in_the_end()
def main() -> None:
    parser_of("index.run", __doc__).parse_args()
    results = Results({}, {})
    with own_redis.unbounded() as small_url, own_redis.unbounded() as large_url:
        index_pool.fill(large_url, FILLED_SEGMENTS, LARGE)
        uvloop.run(measure_lookups(small_url, large_url, results))
        uvloop.run(measure_publishing(small_url, results))
    report.finish("index", results.figures, results.goals, seeds=[])


if __name__ == "__main__":
    main()
