"""What one tenant's flood costs another: make bench-fairness ARGS="--rounds 6"

The fleet of the overload benchmark, two engines that promise a first token within 5 s, and two
tenants. One sends many short requests, always: a quarter of what the fleet could serve of them. The
other sends long ones, in turns: as many as leave the pool somewhat more than full together with
those, so that somebody always waits; and four times that. All open loop. The goal is about the
first tenant's requests: what the flood adds to their time to first token in a pool that is full
anyway. What sharing costs at all, beside having the pool alone, is told with it. A p99 of some
hundred requests is one of their few largest, and follows from when they come: so both phases of a
round have the same arrivals of the first tenant's. What each round had says how far it can be
trusted, and how late a request was sent, which is part of its time, whether by the fleet or by us.

With --record each request is written down with its explanation, a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks import report
from benchmarks.fairness.page import page
from benchmarks.fleet import BenchFleet, running
from benchmarks.overload.run import ANSWER_TOKENS, FLEET, PROMPT_TOKENS, OverloadBench
from benchmarks.recording import write_down
from benchmarks.trace_player import ReplayedRequest, Sizes, play, poisson
from cli import stream_client
from cli.stream_client import Endpoint
from common.percentiles import percentile, tail_percent

OWN_SIZES, OWN_SHARE = ((40, 80), (4, 4)), 0.25
OTHERS_SIZES = (PROMPT_TOKENS, ANSWER_TOKENS)
FULL_TIMES, FLOOD_TIMES = 1.25, 4.0
PHASE_S, SETTLE_S = 40.0, 8.0
# Until a gateway has heard of both tenants, what comes first stands in the engines.
BEGIN_S = 5.0
GOAL = 1.1
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "fairness.md"


@dataclass
class Beside:
    """What came of both tenants' requests in all phases of one kind; `rounds`: of the first's."""

    rounds: list[list[ReplayedRequest]] = field(default_factory=list)
    others: list[ReplayedRequest] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        own = [of for phase in self.rounds for of in phase]
        return {
            "requests": len(own),
            "refused": sum(of.status == 429 for of in own),
            "failed": sum(of.status not in (200, 429) for of in own),
            "tail": f"p{tail_percent(len(own))}",
            "ttft_p50_s": round(percentile((of.ttft for of in own if of.ttft is not None), 50), 3),
            "ttft_tail_s": _tail_s((of.ttft for of in own), len(own)),
            "ttft_tail_s_of_each_round": [
                _tail_s((of.ttft for of in phase), len(own)) for phase in self.rounds
            ],
            "ttft_tail_s_at_the_gateway": _tail_s((of.gateway_ttft for of in own), len(own)),
            "sent_late_tail_s": _tail_s((of.sent_late for of in own), len(own)),
            "others_offered": len(self.others),
            "others_served": sum(of.status == 200 for of in self.others),
        }


def _tail_s(seconds: Iterable[float | None], samples: int) -> float:
    """Of some or all of `samples`, which say what a tail is."""
    told = [of for of in seconds if of is not None]
    return round(percentile(told, tail_percent(samples)), 3)


class FairnessBench:
    def __init__(
        self, http: aiohttp.ClientSession, fleet: BenchFleet, other: Endpoint, record: Path | None
    ) -> None:
        self._http = http
        self._fleet = fleet
        self._other = other
        self._record = record

    async def phase(
        self, seed: int, kind: str, own_rate: float, others_rate: float, found: Beside
    ) -> None:
        own, others = await asyncio.gather(
            self._play(self._fleet.gateway, own_rate, OWN_SIZES, seed),
            self._play(self._other, others_rate, OTHERS_SIZES, 1000 + seed),
        )
        found.rounds.append([of for of in own if of.at >= BEGIN_S])
        found.others += others
        if self._record is not None:
            for endpoint, requests in ((self._fleet.gateway, own), (self._other, others)):
                told = {"kind": kind, "tenant": endpoint.name}
                await write_down(self._http, endpoint, self._record, requests, **told)
        await asyncio.sleep(SETTLE_S)

    async def _play(
        self, gateway: Endpoint, rate: float, sizes: Sizes, seed: int
    ) -> list[ReplayedRequest]:
        if not rate:
            return []
        trace = poisson(gateway.name, lambda at: rate, rate, PHASE_S, sizes, seed)
        return await play(self._http, gateway, self._fleet.model, trace)


async def measure(
    fleet: BenchFleet, rounds: int, slo_s: float, record: Path | None
) -> dict[str, Any]:
    found = {"alone": Beside(), "full": Beside(), "flooded": Beside()}
    order = random.Random(2)
    async with stream_client.session() as http:
        overload = OverloadBench(http, fleet, slo_s)
        own = OWN_SHARE * await overload.capacity(OWN_SIZES)
        capacity = await overload.capacity(OTHERS_SIZES)
        filling = (FULL_TIMES - OWN_SHARE) * capacity
        rates = {"alone": 0.0, "full": filling, "flooded": FLOOD_TIMES * filling}
        bench = FairnessBench(http, fleet, other_tenant(fleet), record)
        kinds = [(0, "alone")]
        for turn in range(rounds):
            kinds += [(turn, kind) for kind in order.sample(["full", "flooded"], 2)]
        for seed, kind in kinds:
            await bench.phase(seed, kind, own, rates[kind], found[kind])
            print(kind, found[kind].figures(), flush=True)
    return {
        "capacity_requests_per_s": round(capacity, 3),
        "own_requests_per_s": round(own, 3),
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
    parser.add_argument("--rounds", type=int, default=6, help="of each phase, in turns")
    parser.add_argument("--record", type=Path, help="a file for each request's explanation")
    parser.add_argument("--write", action="store_true", help="docs/benchmarks/fairness.md")
    options = parser.parse_args()
    began = time.monotonic()
    with running(FLEET) as fleet:
        figures = asyncio.run(measure(fleet, options.rounds, 5.0, options.record))
    full, flooded = figures["full"], figures["flooded"]
    goals = {
        "tail_ttft_beside_a_flood_of_that_in_a_full_pool": report.goal(
            flooded["ttft_tail_s"] / full["ttft_tail_s"], at_most=GOAL
        ),
        "refused_beside_a_flood": report.goal(flooded["refused"], at_most=0),
        "failed": report.goal(flooded["failed"] + full["failed"], at_most=0),
    }
    alone = figures["alone"]["ttft_tail_s"]
    figures["tail_ttft_beside_a_flood_of_that_alone"] = round(flooded["ttft_tail_s"] / alone, 3)
    if options.write:
        minutes = (time.monotonic() - began) / 60
        command = report.command("fairness")
        PAGE.write_text(page(figures, goals, command, minutes, report.machine_in_words()))
    report.finish("fairness", figures, goals, seeds=range(options.rounds))


if __name__ == "__main__":
    main()
