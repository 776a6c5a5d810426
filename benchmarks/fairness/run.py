"""What one tenant's flood costs another: make bench-fairness ARGS="--rounds 2"

The fleet of the overload benchmark, two engines that promise a first token within 5 s, and two
tenants. One sends a quarter of what the fleet can serve, always. The other sends, in turns:
nothing; as much as fills the fleet; and four times that. All open loop. The goal is about the first
tenant's requests: what the flood adds to their time to first token in a pool that is full anyway.
What sharing costs at all, beside having the pool alone, is told with it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp

from benchmarks import report
from benchmarks.fleet import BenchFleet, running
from benchmarks.overload.run import ANSWER_TOKENS, FLEET, PROMPT_TOKENS, OverloadBench, quantile
from benchmarks.trace_player import ReplayedRequest, play, poisson
from cli import stream_client
from cli.stream_client import Endpoint

OWN_SHARE, FLOOD_TIMES = 0.25, 4.0
PHASE_S, SETTLE_S = 45.0, 10.0
# Until a gateway has heard of both tenants, what comes first stands in the engines.
BEGIN_S = 5.0
GOAL = 1.1


@dataclass
class Beside:
    """What came of both tenants' requests in all phases of one kind."""

    own: list[ReplayedRequest] = field(default_factory=list)
    others: list[ReplayedRequest] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        ttfts = sorted(of.ttft for of in self.own if of.ttft is not None)
        return {
            "requests": len(self.own),
            "refused": sum(of.status == 429 for of in self.own),
            "failed": sum(of.status not in (200, 429) for of in self.own),
            "ttft_p50_s": round(quantile(ttfts, 0.5), 3),
            "ttft_p99_s": round(quantile(ttfts, 0.99), 3),
            "others_offered": len(self.others),
            "others_served": sum(of.status == 200 for of in self.others),
        }


class FairnessBench:
    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet, other: Endpoint) -> None:
        self._http = http
        self._fleet = fleet
        self._other = other
        self._seeds = random.Random(1)

    async def phase(self, own_rate: float, others_rate: float, found: Beside) -> None:
        own, others = await asyncio.gather(
            self._play(self._fleet.gateway, own_rate), self._play(self._other, others_rate)
        )
        found.own += [of for of in own if of.at >= BEGIN_S]
        found.others += others
        await asyncio.sleep(SETTLE_S)

    async def _play(self, gateway: Endpoint, rate: float) -> list[ReplayedRequest]:
        if not rate:
            return []
        sizes, seed = (PROMPT_TOKENS, ANSWER_TOKENS), self._seeds.randrange(1000)
        trace = poisson(gateway.name, lambda at: rate, rate, PHASE_S, sizes, seed)
        return await play(self._http, gateway, self._fleet.model, trace)


async def measure(fleet: BenchFleet, rounds: int, slo_s: float) -> dict[str, Any]:
    found = {"alone": Beside(), "full": Beside(), "flooded": Beside()}
    async with stream_client.session() as http:
        capacity = await OverloadBench(http, fleet, slo_s).capacity()
        bench = FairnessBench(http, fleet, other_tenant(fleet))
        own = OWN_SHARE * capacity
        filling = capacity - own
        for _ in range(rounds):
            for kind, rate in (
                ("alone", 0.0),
                ("full", filling),
                ("flooded", FLOOD_TIMES * filling),
            ):
                await bench.phase(own, rate, found[kind])
                print(kind, found[kind].figures(), flush=True)
    return {
        "capacity_requests_per_s": round(capacity, 3),
        **{kind: of.figures() for kind, of in found.items()},
    }


def other_tenant(fleet: BenchFleet) -> Endpoint:
    """As which a key that is made now lets one in."""
    made = subprocess.run(
        [sys.executable, "-m", "cli.main", "keys", "create", "other", "--json"],
        env={**os.environ, "ANTEFIX_HOME": str(fleet.home)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    key = json.loads(made.stdout)["key"]
    return replace(fleet.gateway, name="other", headers={"authorization": f"Bearer {key}"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="of each phase, in turns")
    rounds = parser.parse_args().rounds
    with running(FLEET) as fleet:
        figures = asyncio.run(measure(fleet, rounds, slo_s=5.0))
    full, flooded = figures["full"], figures["flooded"]
    goals = {
        "p99_ttft_beside_a_flood_of_that_in_a_full_pool": report.goal(
            flooded["ttft_p99_s"] / full["ttft_p99_s"], at_most=GOAL
        ),
        "refused_beside_a_flood": report.goal(flooded["refused"], at_most=0),
        "failed": report.goal(flooded["failed"] + full["failed"], at_most=0),
    }
    alone = figures["alone"]["ttft_p99_s"]
    figures["p99_ttft_beside_a_flood_of_that_alone"] = round(flooded["ttft_p99_s"] / alone, 3)
    report.finish("fairness", figures, goals)


if __name__ == "__main__":
    main()
