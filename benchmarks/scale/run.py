"""A fleet of up to 1,000 replicas: make bench-scale ARGS=--write

Engines are simulated in virtual time (an A100's, from published figures), our gateways' scheduler,
the publishers' code and Redis are real; random, least loaded, consistent hashing, an approximate
prefix tree and an oracle are played beside ours. Conversations on fleets of several sizes and
behind several gateways; Mooncake's and Azure's recorded traces at rising load on 8 replicas; what
1,000 replicas take of one Redis, and three nodes of a Redis Cluster; and how costs grow over a
factor of 100. As many simulations at a time as there are cores. Where the recorded traces cannot
be had the rest is played, it says so in the end, and writes no page. An interrupted run
resumes with --keep FILE, simulation by simulation.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.scale import costs, goals, page, plots, published, redis_cluster, redis_load
from benchmarks.scale.choosers import CHOOSERS
from benchmarks.scale.redis_load import RedisDemand
from benchmarks.scale.results import FleetCase, FleetSummary, as_json, table
from benchmarks.scale.simulate import (
    CHAT_LOAD,
    CONVERSATIONS,
    OURS,
    WARM_UP,
    Simulation,
    capacity,
    run,
)
from benchmarks.scale.traffic import chats
from benchmarks.stand import own_redis, public_data, report
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.kept_parts import KeptParts, all_found
from benchmarks.stand.options import add_keep, add_write, parser_of
from common.errors import Problem
from loadgen.workloads import WORKLOADS
from simulator import engine_profile, traces
from simulator.engines import Hardware

PROFILE = engine_profile.SHIPPED.with_name("llama-8b-a100.json")
SIZES, GATEWAYS = (8, 32, 128), (1, 2, 4, 8)
# Of one replica, about half of what it can do.
CONVERSATION_RATE = 3.0
GATEWAYS_OVER, TRACE_REPLICAS = 32, 8
# Of what the fleet can do when nothing is cached.
LOADS = (0.7, 0.9, 1.0, 1.1)
# At which a workload is looked at for how long its prompts are.
CHAT_RATE = 10.0
# The peer's own: its trace at 0.8 of its speed, 23,608 requests in 59 minutes.
PEER_SPEED = 0.8
# A 10,000-token prompt in segments of 128, of which a third is cached.
DEMAND = RedisDemand(replicas=1000, gateways=8, requests=1000.0, segments=78, computed=52)
POOLS = 24


def policies() -> tuple[str, ...]:
    return (OURS, *CHOOSERS)


def sizes(options: argparse.Namespace, hardware: Hardware) -> Iterator[Simulation]:
    for replicas in options.sizes:
        for policy in policies():
            case = FleetCase(CONVERSATIONS, policy, replicas, 1, CONVERSATION_RATE * replicas)
            yield Simulation(case, hardware, options.seed, warm_up=WARM_UP)


def gateways(options: argparse.Namespace, hardware: Hardware) -> Iterator[Simulation]:
    """Ours over fleets of each size; over one of them beside others, for which `sizes` may lack the
    oracle."""
    cases = [
        FleetCase(CONVERSATIONS, OURS, replicas, count, CONVERSATION_RATE * replicas)
        for replicas in options.sizes
        for count in options.gateways
    ]
    rate = CONVERSATION_RATE * GATEWAYS_OVER
    cases += [
        FleetCase(CONVERSATIONS, policy, GATEWAYS_OVER, count, rate)
        for count in options.gateways
        for policy in (OURS, "approximate_tree")
    ]
    cases.append(FleetCase(CONVERSATIONS, "oracle", GATEWAYS_OVER, 1, rate))
    known = {simulation.case for simulation in sizes(options, hardware)}
    for case in dict.fromkeys(cases):
        if case not in known:
            yield Simulation(case, hardware, options.seed, warm_up=WARM_UP)


def chat_workloads(options: argparse.Namespace, hardware: Hardware) -> Iterator[Simulation]:
    for workload in WORKLOADS:
        most = capacity(chats(workload, options.seed, CHAT_RATE, 1), hardware) * TRACE_REPLICAS
        for policy in policies():
            case = FleetCase(workload, policy, TRACE_REPLICAS, 1, round(CHAT_LOAD * most, 2))
            yield Simulation(case, hardware, options.seed)


def loads(file: Path, options: argparse.Namespace, hardware: Hardware) -> Iterator[Simulation]:
    trace = traces.read(file, options.seed)
    most = capacity(trace, hardware) * TRACE_REPLICAS
    requests = min(options.requests or len(trace.requests), len(trace.requests))
    for load in options.loads:
        for policy in policies():
            case = FleetCase(trace.name, policy, TRACE_REPLICAS, 1, round(load * most, 2))
            yield Simulation(case, hardware, options.seed, file, requests)


def published_load(options: argparse.Namespace) -> Iterator[Simulation]:
    hardware = engine_profile.read(published.PROFILE).hardware
    for rate in published.STAGES:
        for policy in policies():
            case = FleetCase(published.WORKLOAD, policy, published.PODS, 1, rate)
            yield Simulation(case, hardware, options.seed, warm_up=published.warm_up(rate))


def peers_own(options: argparse.Namespace, hardware: Hardware) -> Iterator[Simulation]:
    if options.peer_trace is None:
        return
    trace = traces.read(options.peer_trace, options.seed)
    rate = round(PEER_SPEED * len(trace.requests) / trace.seconds, 2)
    for policy in policies():
        case = FleetCase(trace.name, policy, TRACE_REPLICAS, 1, rate)
        yield Simulation(case, hardware, options.seed, options.peer_trace, len(trace.requests))


def play(simulations: Sequence[Simulation], kept: KeptParts) -> list[FleetSummary]:
    """The results in the order of the simulations. The longest begin first; what is kept is not
    played again."""
    longest_first = sorted(simulations, key=lambda one: -one.case.replicas)

    def tell(found: dict[Simulation, FleetSummary], one: Simulation) -> None:
        print(page.told(found[one]), flush=True)

    found = all_found(longest_first, run, FleetSummary, kept, tell)
    return [found[one] for one in simulations]


def recorded() -> tuple[list[Path], str]:
    """Mooncake's trace and Azure's; or none, and why."""
    wanted = (public_data.CONVERSATION_TRACE, public_data.AZURE_TRACE)
    try:
        return [public_data.find(name) for name in wanted], ""
    except Problem as error:
        return [], str(error)


@stopped_in_the_end()
def main() -> None:
    options = _options()
    began = time.monotonic()
    engine = engine_profile.read(options.profile)
    files, left_out = recorded()
    if left_out and options.write:
        sys.exit(f"The page would lack the recorded traces: {left_out}.")
    try:
        asked = [*sizes(options, engine.hardware), *gateways(options, engine.hardware)]
        asked += chat_workloads(options, engine.hardware)
        for file in files:
            asked += loads(file, options, engine.hardware)
        asked += [*peers_own(options, engine.hardware), *published_load(options)]
    except Problem as error:
        sys.exit(f"There is no trace to play: {error}.")
    try:
        kept = KeptParts(options.keep, "scale", rule=None)
    except Problem as error:
        sys.exit(f"error: {error}")
    found = play(asked, kept)
    with own_redis.unbounded() as url:
        redis = uvloop.run(redis_load.measure(url, DEMAND))
    with redis_cluster.cluster() as ports:
        cluster = uvloop.run(redis_cluster.measure(ports, POOLS))
    growths = uvloop.run(costs.measure())
    judged = goals.goals(found, redis, cluster, growths)
    print("\n" + table(found) + "\n")
    if options.write:
        text = page.page(
            found,
            judged,
            redis,
            cluster,
            growths,
            engine,
            command=report.command("scale"),
            minutes=(time.monotonic() - began) / 60,
            machine=report.machine_in_words(),
        )
        (report.PAGES / "scale.md").write_text(text)
        plots.draw_fleets(found, report.PAGES / "scale.svg")
        plots.draw_costs(growths, report.PAGES / "scale-costs.svg")
    figures: dict[str, Any] = {
        "simulations": as_json(found),
        "redis_busy": {kind: round(busy, 4) for kind, busy in redis.busy.items()},
        "cluster_gain": round(cluster.gain, 2),
        "growth": {
            growth.name: {"factor": round(growth.factor, 2), "power": round(growth.exponent, 2)}
            for growth in growths
        },
    }
    report.finish("scale", figures, judged, seeds=[options.seed])
    if left_out:
        print(f"The recorded traces were left out: {left_out}.", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = parser_of("scale.run", __doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="of the fleet")
    parser.add_argument("--gateways", type=int, nargs="+", default=GATEWAYS)
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS, help="of the traces")
    parser.add_argument("--requests", type=int, default=2000, help="of each trace; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", type=Path, default=PROFILE, help="of the engines")
    parser.add_argument("--peer-trace", type=Path, help="Mooncake's toolagent_trace.jsonl")
    add_write(parser, "scale.{md,svg}")
    add_keep(parser)
    options = parser.parse_args()
    if min(options.sizes) < 1 or min(options.gateways) < 1 or min(options.loads) <= 0:
        parser.error("--sizes, --gateways and --loads must be above 0")
    return options


if __name__ == "__main__":
    main()
