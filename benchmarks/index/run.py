"""Measure lookups in the prefix index, and its publisher: make bench-index

There are two Redis servers over loopback TCP: one with a pool of 64 replicas, one with 1,000
replicas and 2.5 million segments. All lookups are measured in turn, round after round, in the event
loop that Ray Serve's replicas have (uvloop), on cores that never halt; the smallest once more where
they do. `benchmarks/harness/fleets/index_pool.py` describes the prompts.
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

from autoscaling.admission.pool_scheduler import PoolScheduler
from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from benchmarks.harness.fleets import index_pool, own_redis
from benchmarks.harness.fleets.index_pool import PATIENT_S, SEGMENT_TOKENS, SMALL, board_of
from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import parser_of
from benchmarks.index import publishing
from common.percentiles import percentile
from router.board.pool_feeds import PoolFeeds
from router.choice.policies import PlacementRequest
from router.index.index import PrefixIndex
from router.index.segment_keys import Namespace, SegmentHasher, index_secret
from router.redis.redis_client import connect

LARGE, FILLED_SEGMENTS = 1_000, 2_500_000
# Calls of one case before the next has its turn.
ROUNDS, WARMUP, TURN = 50, 2, 20
# Segments of a prompt -> the goal of its lookup, in ms; for the large pool twice that.
LOOKUP_GOAL_MS = {256: 0.2, 1_024: 0.8}
PLACEMENT_GOAL_MS = 0.5
EVENTS_GOAL, PUBLISHER_RUNS = 100_000, 3
# Linux runs such a process only while no other needs its core.
SPIN = """
import os, sys
os.sched_setaffinity(0, [int(sys.argv[1])])
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


@dataclass(frozen=True)
class Case:
    """`name` is empty for what must be done now and then but is not measured. `undo` gets each
    call's result, outside the time that is measured."""

    name: str
    call: Callable[[], Awaitable[object]]
    turn: int = TURN
    goal_ms: float | None = None
    undo: Callable[[Any], None] = lambda _: None


def lookup_cases(url: str, index: PrefixIndex, replicas: int) -> list[Case]:
    smallest = partial(index.lookup, index_pool.prompt_keys(1))
    cases = [Case(f"lookup_1_segment_{replicas}_replicas_cold", smallest)]
    for segments, goal_ms in LOOKUP_GOAL_MS.items():
        for mix in index_pool.MIXES:
            keys = index_pool.prompt_keys(segments)
            index_pool.hold(url, keys, index_pool.depths_of(mix, segments, replicas))
            name = f"lookup_{segments}_segments_{replicas}_replicas_{mix}"
            limit = goal_ms * (2 if replicas == LARGE else 1) if mix == "conversation" else None
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
        depths, _ = await feeds.look_up(keys)
        prompt = PlacementRequest(len(tokens), tuple(keys))
        return scheduler.place(SchedulingRequest(prompt, depths, 0.0))

    async def from_tokens() -> Attempt:
        return await from_keys(hasher.keys(namespace, tokens, SEGMENT_TOKENS))

    async def read_board() -> None:
        scheduler.board.update(board)

    def forget(attempt: Attempt) -> None:
        scheduler.ended(attempt, served_by=None)

    by_keys = partial(from_keys, keys)
    return [
        Case("", read_board, turn=1),
        Case("placement_from_keys", by_keys, goal_ms=PLACEMENT_GOAL_MS, undo=forget),
        Case("placement_from_tokens", from_tokens, undo=forget),
    ]


@contextmanager
def cores_awake() -> Iterator[None]:
    """Idle cores spin. In a virtual machine, the host takes tens of microseconds to wake a halted
    core, for each reply that is waited for."""
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


Figures = dict[str, float]
Goals = dict[str, Any]


async def measure_lookups(small_url: str, large_url: str, figures: Figures, goals: Goals) -> None:
    async with AsyncExitStack() as stack:
        cases: list[Case] = []
        for url, replicas in ((small_url, SMALL), (large_url, LARGE)):
            client = connect(url, decode=False)
            index = PrefixIndex(client, index_pool.POOL, PATIENT_S)
            stack.push_async_callback(client.aclose)
            stack.push_async_callback(index.aclose)
            cases += lookup_cases(url, index, replicas)
        cases += placement_cases(small_url, *index_pool.placing(small_url, stack))
        with cores_awake():
            seconds = await in_turn(cases)
        halting = replace(cases[0], name=f"{cases[0].name}_where_cores_halt")
        seconds |= await in_turn([halting])
    limits = {case.name: case.goal_ms for case in cases}
    for name, of in seconds.items():
        p50, p99 = (1000 * percentile(of, percent) for percent in (50, 99))
        figures |= {f"{name}_ms_p50": round(p50, 3), f"{name}_ms_p99": round(p99, 3)}
        if (limit := limits.get(name)) is not None:
            goals[f"{name}_ms_p50"] = report.goal(p50, at_most=limit)


async def measure_publishing(url: str, figures: Figures, goals: Goals) -> None:
    client = connect(url)
    try:
        for replicas in (SMALL, LARGE):
            board = f"bench/{replicas}"
            size = await index_pool.bytes_per_segment(client, url, board, replicas)
            figures[f"bytes_per_segment_{replicas}_replicas"] = round(size)
        rates = [await publishing.block_events_per_second(client) for _ in range(PUBLISHER_RUNS)]
    finally:
        await client.aclose()
    rate = statistics.median(rates)
    figures["published_block_events_per_s"] = round(rate)
    goals["published_block_events_per_s"] = report.goal(rate, at_least=EVENTS_GOAL)


@stopped_in_the_end()
def main() -> None:
    parser_of("index.run", __doc__).parse_args()
    figures: Figures = {}
    goals: Goals = {}
    with own_redis.unbounded() as small_url, own_redis.unbounded() as large_url:
        index_pool.fill(large_url, FILLED_SEGMENTS, LARGE)
        uvloop.run(measure_lookups(small_url, large_url, figures, goals))
        uvloop.run(measure_publishing(small_url, figures, goals))
    report.finish("index", figures, goals, seeds=[])


if __name__ == "__main__":
    main()
