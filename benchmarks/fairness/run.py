"""Measure what one tenant's flood costs another: make bench-fairness

The fleet is that of the overload benchmark, two engines with an SLO of 5 s to the first token. The
requests of two tenants are alike. One sends a quarter of the fleet's capacity. The other, in turns,
fills the rest, sends four times that, and sends nothing. All of it is open loop; the capacity is
the knee of a sweep (`benchmarks/harness/load/offered_load.py`). For each seed of goals.yaml the
first tenant's arrivals are the same in all three, whose order is random. Goals are medians over the
seeds of its tail during the flood, divided by that in a full pool, or alone.

An interrupted run resumes with --keep FILE, phase by phase.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.harness.fleets.fleet import BenchFleet, running
from benchmarks.harness.load import pace
from benchmarks.harness.load.offered_load import FIRST_RATE, FLEET, OverloadBench, steady
from benchmarks.harness.load.trace_player import ReplayedRequest, play
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.harness.results.options import add_keep, parser_of
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint
from common.percentiles import percentile, tail_percent

RULE = rules.of("fairness")
OWN_SHARE, FULL_TIMES = RULE.settings["own_share"], RULE.settings["full_times"]
FLOOD_TIMES, PHASE_S = RULE.settings["flood_times"], RULE.settings["phase_s"]
SETTLE_S = 8.0
# Until a gateway knows both tenants, engines are filled by whichever came first.
BEGIN_S = 5.0
KINDS = ("alone", "full", "flooded")


Requests = tuple[ReplayedRequest, ...]


@dataclass(frozen=True)
class SharedPhase:
    """The outcomes of both tenants' requests in one phase."""

    own: Requests
    others: Requests


@dataclass
class Beside:
    """The outcomes of both tenants' requests in all phases of one kind; `rounds`: of the first."""

    rounds: list[list[ReplayedRequest]] = field(default_factory=list)
    others: list[ReplayedRequest] = field(default_factory=list)

    @property
    def all(self) -> list[ReplayedRequest]:
        return [*(of for phase in self.rounds for of in phase), *self.others]

    def add(self, of: SharedPhase) -> None:
        self.rounds.append([request for request in of.own if request.at >= BEGIN_S])
        self.others += of.others

    def figures(self) -> dict[str, Any]:
        own = [of for phase in self.rounds for of in phase]
        fewest = min(map(len, self.rounds))
        return {
            "requests": len(own),
            "refused": sum(of.status == 429 for of in own),
            "failed": sum(of.status not in (200, 429) for of in own),
            "tail": f"p{tail_percent(len(own))}",
            "ttft_p50_s": round(percentile((of.ttft for of in own if of.ttft is not None), 50), 3),
            "ttft_tail_s": _tail_s((of.ttft for of in own), len(own)),
            "tail_of_each_round": f"p{tail_percent(fewest)}",
            "ttft_tail_s_of_each_round": [
                _tail_s((of.ttft for of in phase), fewest) for phase in self.rounds
            ],
            "ttft_tail_s_at_the_gateway": _tail_s((of.gateway_ttft for of in own), len(own)),
            "sent_late_tail_s": _tail_s((of.sent_late for of in own), len(own)),
            "others_offered": len(self.others),
            "others_served": sum(of.status == 200 for of in self.others),
        }


def _tail_s(seconds: Iterable[float | None], samples: int) -> float:
    """The tail that `samples` requests allow, of those with a figure."""
    told = [of for of in seconds if of is not None]
    return round(percentile(told, tail_percent(samples)), 3)


async def measure(fleet: BenchFleet, slo_s: float, kept: KeptParts) -> dict[str, Any]:
    found = {kind: Beside() for kind in KINDS}
    order = random.Random(2)
    async with stream_client.session() as http:
        overload = OverloadBench(http, fleet, slo_s)
        await overload.phase(FIRST_RATE, seed=0)  # does not count: the gateway learns rates
        if (capacity := kept.get("capacity", float)) is None:
            capacity = await overload.knee(RULE.reported[0])
            kept.keep("capacity", capacity)
        own, filling = OWN_SHARE * capacity, (FULL_TIMES - OWN_SHARE) * capacity
        rates = {"alone": 0.0, "full": filling, "flooded": FLOOD_TIMES * filling}
        tenants = (fleet.gateway, 0), (other_tenant(fleet), 1000)

        async def send(tenant: tuple[Endpoint, int], rate: float, seed: int) -> Requests:
            gateway, seeds = tenant
            if not rate:
                return ()
            trace = steady(gateway.name, rate, PHASE_S, seeds + seed)
            return tuple(await play(http, gateway, fleet.model, trace))

        for seed in RULE.reported:
            for kind in order.sample([*rates], len(rates)):
                if (of := kept.get(f"{seed} {kind}", SharedPhase)) is None:
                    both = zip(tenants, (own, rates[kind]), strict=True)
                    of = SharedPhase(*await asyncio.gather(*(send(*one, seed) for one in both)))
                    await asyncio.sleep(SETTLE_S)
                    kept.keep(f"{seed} {kind}", of)
                found[kind].add(of)
                print(kind, found[kind].figures(), flush=True)
    sent_late = [of.sent_late for kind in found.values() for of in kind.all]
    return {
        **pace.figures(sent_late),
        "capacity_requests_per_s": round(capacity, 3),
        "own_requests_per_s": round(own, 3),
        **{kind: of.figures() for kind, of in found.items()},
    }


def goals_of(figures: dict[str, Any]) -> dict[str, Any]:
    """By seed: flooded divided by full and by alone. Rejected and failed in full and flooded."""
    tails = {kind: figures[kind]["ttft_tail_s_of_each_round"] for kind in KINDS}
    judged = {}
    for kind, goal in (
        ("full", "tail_ttft_beside_a_flood_of_that_in_a_full_pool"),
        ("alone", "tail_ttft_beside_a_flood_of_that_alone"),
    ):
        pairs = zip(tails["flooded"], tails[kind], strict=True)
        judged[goal] = RULE.judged(goal, [flooded / base for flooded, base in pairs])
    for what in ("refused", "failed"):
        told = sum(figures[kind][what] for kind in ("full", "flooded"))
        judged[what] = RULE.judged(what, [told])
    return judged


def other_tenant(fleet: BenchFleet) -> Endpoint:
    """A second tenant, with a new key."""
    made = subprocess.run(
        [sys.executable, "-m", "cli.main", "key", "create", "other", "-o", "json"],
        env={**os.environ, "ANTEFIX_HOME": str(fleet.home)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    key = json.loads(made.stdout)["key"]
    return replace(fleet.gateway, name="other", headers={"authorization": f"Bearer {key}"})


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("fairness.run", __doc__)
    add_keep(parser)
    kept = KeptParts(parser.parse_args().keep, "fairness", RULE)
    with running(FLEET) as fleet:
        figures = asyncio.run(measure(fleet, 5.0, kept))
    report.finish("fairness", figures, goals_of(figures), seeds=RULE.reported)


if __name__ == "__main__":
    main()
