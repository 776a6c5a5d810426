"""One simulation, in a separate process: requests, replicas and a router."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.scale import published
from benchmarks.scale.choosers import CHOOSERS
from benchmarks.scale.fleet import SimulatedReplicas, VirtualFleet, Visit
from benchmarks.scale.gateways import IndexedGateways
from benchmarks.scale.results import FleetCase, FleetSummary, summary
from benchmarks.scale.traffic import ceiling, chats, conversations, paced, shuffled_gateways
from benchmarks.stand import own_redis
from loadgen.workloads import WORKLOADS
from simulator import traces
from simulator.engines import Hardware
from simulator.simulation import in_blocks_of
from simulator.traces import Trace

OURS, TREE = "antefix", "approximate_tree"
CONVERSATIONS = "conversations"
POOL = "bench/scale"
# The share of the chats in which caches fill.
WARM_UP = 1 / 3
# Of the chats: requests in all and of a replica, and the least and most seconds. Each replica
# computes a shared system prompt once, which in one minute would be a hundredth of all hits. With
# only 33 requests a replica, some would get twice the requests of others by chance.
MOST_REQUESTS, OF_A_REPLICA, MIN_SECONDS, MOST_SECONDS = 50_000, 150, 15.0, 240.0
# Of each workload of `antefix bench`; its load is of what the fleet can do when nothing is cached.
EPISODES, CHAT_LOAD = 5, 0.7
# Requests that decode at once.
FULL_BATCH = 32


@dataclass(frozen=True)
class Simulation:
    """`trace`: a recorded one, of which `requests` are played; None: made here, as the case's
    workload says. `warm_up`: the share of requests that do not count."""

    case: FleetCase
    hardware: Hardware
    seed: int
    trace: Path | None = None
    requests: int = 0
    warm_up: float = 0.0

    def run(self) -> FleetSummary:
        began = time.perf_counter()
        traffic = self._traffic()
        size = traffic.block_tokens or self.hardware.block_tokens
        hardware = in_blocks_of(self.hardware, size)
        gateways = shuffled_gateways(len(traffic.requests), self.case.gateways, self.seed)
        replicas = SimulatedReplicas(hardware, self.case.replicas)
        decision_s: Sequence[float] = ()
        if self.case.policy == OURS:
            with own_redis.unbounded() as url:
                playing = _ours(url, replicas, self.case, self.seed, traffic, gateways)
                visits, decision_s = uvloop.run(playing)
        else:
            chooser = CHOOSERS[self.case.policy](replicas, self.case.gateways, self.seed)
            visits = uvloop.run(VirtualFleet(replicas, chooser).play(traffic.requests, gateways))
        most = ceiling(traffic.requests, size)
        wall_s = time.perf_counter() - began
        return summary(self.case, visits, most, self.warm_up, decision_s, wall_s)

    def _traffic(self) -> Trace:
        case = self.case
        if case.workload in WORKLOADS:
            return chats(case.workload, self.seed, case.rate, EPISODES)
        if case.workload == published.WORKLOAD:
            return published.shared_prefixes(self.seed, case.rate)
        if self.trace is None:
            most = max(MOST_REQUESTS, OF_A_REPLICA * case.replicas)
            seconds = min(MOST_SECONDS, max(MIN_SECONDS, most / case.rate))
            return conversations(self.seed, case.rate, seconds)
        return paced(_read(self.trace, self.seed), self.requests, case.rate, self.seed)


async def _ours(
    url: str,
    replicas: SimulatedReplicas,
    case: FleetCase,
    seed: int,
    traffic: Trace,
    gateways: Sequence[int],
) -> tuple[list[Visit], list[float]]:
    router = IndexedGateways(url, POOL, replicas, case.gateways, seed)
    try:
        await router.begin()
        visits = await VirtualFleet(replicas, router).play(traffic.requests, gateways)
        return visits, router.decision_s
    finally:
        await router.aclose()


@functools.cache
def _read(file: Path, seed: int) -> Trace:
    return traces.read(file, seed)


def capacity(trace: Trace, hardware: Hardware) -> float:
    """Requests of this kind that one replica can compute a second when nothing is cached.

    Batches are full: all that decode in a step share its fixed cost.
    """
    prompts = sum(request.prompt_tokens for request in trace.requests) / len(trace.requests)
    answers = sum(request.answer_tokens for request in trace.requests) / len(trace.requests)
    decode_s = hardware.sequence_s + hardware.step_s / FULL_BATCH
    return 1.0 / (prompts / hardware.prefill_rate + answers * decode_s)
