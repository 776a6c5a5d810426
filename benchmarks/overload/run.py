"""What a fleet does with more than it can serve: make bench-overload ARGS="--rounds 3"

One fleet of real engines. In each round its capacity is measured: requests that finish in a second
while enough are always under way. Then so much is offered, and then three times as much, open loop.
Every answer must be a success or a 429 that says when to come back; those let in must get their
first token in time, at least as many of them as at capacity; and when it ends all is well again
within seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks import report
from benchmarks.fleet import BenchFleet, running
from benchmarks.trace_player import ReplayedRequest, Sizes, play, poisson
from cli import stream_client
from common.percentiles import Tail, percentile
from simulator.traces import Request, Trace

FLEET = Path(__file__).with_name("fleet.yaml")
PROMPT_TOKENS, ANSWER_TOKENS = (50, 300), (16, 16)
CONCURRENCY, CAPACITY_S = 32, 30.0
TIMES_CAPACITY, PHASE_S = 3.0, 60.0
PROBE_PERIOD_S, PROBES_S, PROBE = 0.5, 15.0, (16, 4)
P99_GOAL, RECOVERY_GOAL_S = 1.2, 10.0


@dataclass(frozen=True)
class Phase:
    """What came of `offered` requests a second; after it all was well in `recovered_s`."""

    offered: float
    outcomes: tuple[ReplayedRequest, ...]
    recovered_s: float

    def goodput(self, slo_s: float) -> float:
        """Requests a second that held the SLO."""
        return sum(outcome.met(slo_s) for outcome in self.outcomes) / PHASE_S

    @property
    def ttfts(self) -> list[float]:
        return sorted(outcome.ttft for outcome in self.outcomes if outcome.ttft is not None)


class OverloadBench:
    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet, slo_s: float) -> None:
        self._http = http
        self._fleet = fleet
        self._slo_s = slo_s
        self._rng = random.Random(1)

    async def capacity(self, sizes: Sizes = (PROMPT_TOKENS, ANSWER_TOKENS)) -> float:
        """Requests of these sizes that finish in a second while CONCURRENCY are under way."""
        until = asyncio.get_running_loop().time() + CAPACITY_S
        counts = await asyncio.gather(*(self._one_by_one(until, sizes) for _ in range(CONCURRENCY)))
        return sum(counts) / CAPACITY_S

    async def phase(self, rate: float) -> Phase:
        sizes, seed = (PROMPT_TOKENS, ANSWER_TOKENS), self._rng.randrange(1000)
        offered = poisson("offered", lambda at: rate, rate, PHASE_S, sizes, seed)
        playing = asyncio.create_task(self._play(offered))
        await asyncio.sleep(PHASE_S)
        recovered_s = await self._recovered()
        return Phase(rate, tuple(await playing), recovered_s)

    async def _recovered(self) -> float:
        """Seconds from now until a request held the SLO, and every one after it."""
        count = int(PROBES_S / PROBE_PERIOD_S)
        probes = tuple(Request(i * PROBE_PERIOD_S, *PROBE) for i in range(count))
        outcomes = await self._play(Trace("probes", probes, PROBES_S))
        failed = [o.at + PROBE_PERIOD_S for o in outcomes if not o.met(self._slo_s)]
        return max(failed, default=0.0)

    async def _one_by_one(self, until: float, sizes: Sizes) -> int:
        finished, loop = 0, asyncio.get_running_loop()
        prompt_tokens, answer_tokens = sizes
        while loop.time() < until:
            size = self._rng.randint(*prompt_tokens), self._rng.randint(*answer_tokens)
            (outcome,) = await self._play(Trace("one", (Request(0.0, *size),), 0.0))
            if outcome.status == 429:
                await asyncio.sleep(0.2)
            finished += outcome.status == 200 and loop.time() < until
        return finished

    async def _play(self, trace: Trace) -> list[ReplayedRequest]:
        return await play(self._http, self._fleet.gateway, self._fleet.model, trace)


async def measure(fleet: BenchFleet, rounds: int, slo_s: float) -> list[tuple[Phase, Phase]]:
    """Each round's phases: at capacity, and beyond it."""
    async with stream_client.session() as http:
        bench, pairs = OverloadBench(http, fleet, slo_s), []
        await bench.capacity()  # to no account: rates are learned first
        for _ in range(rounds):
            capacity = await bench.capacity()
            pair = await bench.phase(capacity), await bench.phase(TIMES_CAPACITY * capacity)
            pairs.append(pair)
            for phase in pair:
                print(described(phase, slo_s))
    return pairs


def described(phase: Phase, slo_s: float) -> str:
    statuses = Counter(outcome.status for outcome in phase.outcomes)
    tail = Tail.of(phase.ttfts)
    return (
        f"offered {phase.offered:.2f}/s: {dict(statuses)}, goodput {phase.goodput(slo_s):.2f}/s, "
        f"p50 and {tail.name} TTFT {percentile(phase.ttfts, 50):.2f} {tail.value:.2f} s, "
        f"well after {phase.recovered_s:g} s"
    )


def summary(
    pairs: Sequence[tuple[Phase, Phase]], slo_s: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals."""
    overloads = [overload for _, overload in pairs]
    ratios = [over.goodput(slo_s) / at.goodput(slo_s) for at, over in pairs]
    ttfts = [ttft for overload in overloads for ttft in overload.ttfts]
    tail = Tail.of(ttfts)
    outcomes = [outcome for overload in overloads for outcome in overload.outcomes]
    figures = {
        "slo_s": slo_s,
        "capacity_requests_per_s": [round(at.offered, 3) for at, _ in pairs],
        "offered": len(outcomes),
        "served": len(ttfts),
        "refused": sum(outcome.status == 429 for outcome in outcomes),
        "goodput_per_s": [round(overload.goodput(slo_s), 3) for overload in overloads],
        "goodput_at_capacity_per_s": [round(at.goodput(slo_s), 3) for at, _ in pairs],
        "ttft_p50_s": round(percentile(ttfts, 50), 3),
        f"ttft_{tail.name}_s": round(tail.value, 3),
    }
    goals = {
        "answers_that_are_neither_success_nor_429_with_retry_after": report.goal(
            sum(not outcome.is_fair for outcome in outcomes), at_most=0
        ),
        "goodput_of_that_at_capacity": report.goal(statistics.median(ratios), at_least=1.0),
        f"{tail.name}_ttft_of_the_slo": report.goal(tail.value / slo_s, at_most=P99_GOAL),
        "recovery_s": report.goal(
            max(overload.recovered_s for overload in overloads), at_most=RECOVERY_GOAL_S
        ),
    }
    return figures, goals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of capacity, then overload")
    rounds = parser.parse_args().rounds
    pool = yaml.safe_load(FLEET.read_text())["pools"]["engine"]
    slo_s = float(pool["slo"]["interactive"]["ttft_s"])
    with running(FLEET) as fleet:
        pairs = asyncio.run(measure(fleet, rounds, slo_s))
    report.finish("overload", *summary(pairs, slo_s), seeds=[1])


if __name__ == "__main__":
    main()
