"""A fleet of up to 1,000 replicas: make bench-scale ARGS=--write

Engines are simulated in virtual time, as A100s from published figures. The gateways' scheduler, the
publishers' code and Redis are real. Six other ways to choose a replica get the same requests: chats
on fleets of several sizes and behind several gateways, the workloads of `antefix bench`, Mooncake's
and Azure's recorded traces, and the load that llm-d published. Also measured: what 1,000 replicas
take of one Redis, and how costs grow over a factor of 100. Simulations run on all cores. Without
the recorded traces the others are played, and no plot is drawn. With --keep FILE an interrupted
run resumes, simulation by simulation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from benchmarks.harness.fleets import own_redis
from benchmarks.harness.results import public_data, report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.kept_parts import KeptParts, all_found
from benchmarks.harness.results.options import add_keep, add_write, parser_of
from benchmarks.scale import costs, goals, plots, published, redis_load, results
from benchmarks.scale.choosers import CHOOSERS
from benchmarks.scale.results import FleetCase, FleetSummary
from benchmarks.scale.simulate import (
    CHAT_LOAD,
    CONVERSATIONS,
    OURS,
    TREE,
    WARM_UP,
    Simulation,
    capacity,
)
from benchmarks.scale.traffic import chats
from common.errors import Problem
from loadgen.workloads import WORKLOADS
from simulator import engine_profile, traces

ENGINE = engine_profile.read(engine_profile.SHIPPED.with_name("llama-8b-a100.json")).hardware
POLICIES = (OURS, *CHOOSERS)
SIZES, GATEWAYS = (8, 32, 128), (1, 2, 4, 8)
# Of one replica, about half of its capacity.
CONVERSATION_RATE = 3.0
TREE_REPLICAS, TRACE_REPLICAS = 32, 8
# Shares of the fleet's capacity without caches; the first requests of each recorded trace.
LOADS, REQUESTS = (0.7, 0.9, 1.0, 1.1), 2000
# At which the length of a workload's prompts is measured.
CHAT_RATE = 10.0


def fleets(sizes: Sequence[int], seed: int) -> Iterator[Simulation]:
    """Chats: each policy on each size; Antefix behind several gateways too, and the tree on one
    size."""
    played = [(policy, replicas, 1) for replicas in sizes for policy in POLICIES]
    played += [(OURS, replicas, count) for replicas in sizes for count in GATEWAYS]
    played += [(policy, TREE_REPLICAS, count) for count in GATEWAYS for policy in (OURS, TREE)]
    for policy, replicas, count in dict.fromkeys(played):
        case = FleetCase(CONVERSATIONS, policy, replicas, count, CONVERSATION_RATE * replicas)
        yield Simulation(case, ENGINE, seed, warm_up=WARM_UP)


def workloads(seed: int) -> Iterator[Simulation]:
    for workload in WORKLOADS:
        most = capacity(chats(workload, seed, CHAT_RATE, 1), ENGINE) * TRACE_REPLICAS
        for case in _cases(workload, round(CHAT_LOAD * most, 2)):
            yield Simulation(case, ENGINE, seed)


def recorded(file: Path, seed: int) -> Iterator[Simulation]:
    trace = traces.read(file, seed)
    most = capacity(trace, ENGINE) * TRACE_REPLICAS
    for load in LOADS:
        for case in _cases(trace.name, round(load * most, 2)):
            yield Simulation(case, ENGINE, seed, file, min(REQUESTS, len(trace.requests)))


def published_load(seed: int) -> Iterator[Simulation]:
    engine = engine_profile.read(published.PROFILE).hardware
    for rate in published.STAGES:
        for case in _cases(published.WORKLOAD, rate):
            yield Simulation(case, engine, seed, warm_up=published.warm_up(rate))


def _cases(workload: str, rate: float) -> list[FleetCase]:
    return [FleetCase(workload, policy, TRACE_REPLICAS, 1, rate) for policy in POLICIES]


def play(simulations: Sequence[Simulation], kept: KeptParts) -> list[FleetSummary]:
    """The results in the order of the simulations. The longest begin first. Simulations that are
    kept are not played again."""
    longest_first = sorted(simulations, key=lambda one: -one.case.replicas)

    def tell(found: dict[Simulation, FleetSummary], one: Simulation) -> None:
        print(json.dumps(results.as_json([found[one]])), flush=True)

    found = all_found(longest_first, Simulation.run, FleetSummary, kept, tell)
    return [found[one] for one in simulations]


@stopped_in_the_end()
def main() -> None:
    options = _options()
    files, left_out = public_data.recorded_traces()
    if left_out and options.write:
        sys.exit(f"The plot would lack the recorded traces: {left_out}.")
    asked = [*fleets(options.sizes, options.seed), *workloads(options.seed)]
    try:
        for file in files:
            asked += recorded(file, options.seed)
        kept = KeptParts(options.keep, "scale", rule=None)
    except Problem as error:
        sys.exit(f"error: {error}")
    asked += published_load(options.seed)
    found = play(asked, kept)
    with own_redis.unbounded() as url:
        busy = uvloop.run(redis_load.measure(url))
    growths = uvloop.run(costs.measure())
    figures = {
        "simulations": results.as_json(found),
        "redis_busy": {kind: round(share, 4) for kind, share in busy.items()},
        "growth": {
            name: {
                "power": round(costs.power(name, seconds), 2),
                "ms": [float(f"{1000 * one:.3g}") for one in seconds],
            }
            for name, seconds in growths.items()
        },
    }
    judged = goals.goals(found, busy, growths)
    if options.write:
        plots.draw(found, report.PAGES / "scale.svg")
    if left_out:
        print(f"The recorded traces were left out: {left_out}.", file=sys.stderr)
    report.finish("scale", figures, judged, seeds=[options.seed])


def _options() -> argparse.Namespace:
    parser = parser_of("scale.run", __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the fleet")
    parser.add_argument("--seed", type=int, default=1)
    add_write(parser, "scale.svg")
    add_keep(parser)
    options = parser.parse_args()
    if min(options.sizes) < 1:
        parser.error("--sizes must be above 0")
    return options


if __name__ == "__main__":
    main()
