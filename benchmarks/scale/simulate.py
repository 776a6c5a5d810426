"""One simulation, in a separate process: requests, replicas and a router."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.harness.fleets import own_redis
from benchmarks.scale import published
from benchmarks.scale.choosers import CHOOSERS
from benchmarks.scale.fleet import SimulatedReplicas, VirtualFleet, Visit
from benchmarks.scale.gateways import IndexedGateways
from benchmarks.scale.results import FleetCase, FleetSummary, summary
from benchmarks.scale.traffic import ceiling, chats, conversations, paced, shuffled_gateways
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
# Bounds of the chats: requests in all and per replica, the least and most seconds. Each replica
# computes a shared system prompt once, which in one minute would be a hundredth of all hits. With
# only 33 requests a replica, some would get twice the requests of others by chance.
MOST_REQUESTS, OF_A_REPLICA, MIN_SECONDS, MOST_SECONDS = 50_000, 150, 15.0, 240.0
# Each workload of `antefix bench`; the load is a share of the capacity with nothing cached.
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
        traffic = self._traffic()
        size = traffic.block_tokens or self.hardware.block_tokens
        replicas = SimulatedReplicas(in_blocks_of(self.hardware, size), self.case.replicas)
        visits, decision_s = uvloop.run(self._played(replicas, traffic))
        most = ceiling(traffic.requests, size)
        return summary(self.case, visits, most, self.warm_up, decision_s)

    async def _played(
        self, replicas: SimulatedReplicas, traffic: Trace
    ) -> tuple[list[Visit], list[float]]:
        """All requests, and the real seconds of Antefix's decisions."""
        case, requests = self.case, traffic.requests
        to = shuffled_gateways(len(requests), case.gateways, self.seed)
        if case.policy != OURS:
            chooser = CHOOSERS[case.policy](replicas, case.gateways, self.seed)
            return await VirtualFleet(replicas, chooser).play(requests, to), []
        with own_redis.unbounded() as url:
            router = IndexedGateways(url, POOL, replicas, case.gateways, self.seed)
            try:
                await router.begin()
                return await VirtualFleet(replicas, router).play(requests, to), router.decision_s
            finally:
                await router.aclose()

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
