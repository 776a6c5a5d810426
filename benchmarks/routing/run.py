"""What routing by prefix brings: make bench-routing ARGS="--seeds 4 --write"

One fleet of real engines, the same traffic under each policy in turn: for each seed and workload
the policies run in a new order, each with cold caches. No cache helps another run, since each has
a separate cache salt; resetting the engines' caches between runs only keeps their memory alike.
loadgen/workloads.py has the traffic, benchmarks/harness/load/oracle.py the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.load.routed_runs import FLEET, WORKLOADS, RoutingBench, RoutingRun
from benchmarks.harness.results import report
from benchmarks.harness.results.options import add_write, parser_of
from benchmarks.routing import plots, results
from cli.gateway import stream_client

POLICIES = ("prefix", "least_loaded", "random", "round_robin", "power_of_two", "session")


async def measure(fleet: BenchFleet, options: argparse.Namespace) -> list[RoutingRun]:
    runs: list[RoutingRun] = []
    order = random.Random(0)
    async with stream_client.session() as http:
        bench = RoutingBench(http, fleet)
        await bench.prepare()
        for seed in range(1, options.seeds + 1):
            for workload in options.workloads:
                for policy in order.sample(options.policies, len(options.policies)):
                    run = await bench.run(workload, policy, seed, options.seconds)
                    runs.append(run)
                    _tell(run)
    rank = {name: i for i, name in enumerate((*options.workloads, *options.policies))}
    return sorted(runs, key=lambda run: (rank[run.workload], rank[run.policy], run.seed))


def _tell(run: RoutingRun) -> None:
    if run.failures:
        print(f"{len(run.failures)} failed; the first: {run.failures[0]}", file=sys.stderr)
    ((_, summary),) = results.summaries([run]).items()
    tail = summary.ttft_tail
    print(
        f"seed {run.seed} {run.workload:13} {run.policy:12} {summary.requests:3} requests,"
        f" TTFT mean {summary.ttft_mean:.3f} s, {tail.name} {tail.value:.3f} s,"
        f" cached {summary.cached_ratio:.3f} of {summary.oracle_ratio:.3f},"
        f" {summary.lookups_failed} lookups failed",
        flush=True,
    )


def main() -> None:
    parser = parser_of("routing.run", __doc__)
    parser.add_argument("--seeds", type=int, default=2, help="how often each run is repeated")
    parser.add_argument("--seconds", type=float, default=16.0, help="of arrivals in a run")
    for name, choices in (("policies", POLICIES), ("workloads", WORKLOADS)):
        parser.add_argument(f"--{name}", nargs="+", choices=choices, default=choices)
    add_write(parser, "routing.svg")
    options = parser.parse_args()
    if options.seeds < 1 or options.seconds <= 0:
        parser.error("--seeds and --seconds must be above 0")
    with running_as(with_small_model(FLEET)) as fleet:
        runs = asyncio.run(measure(fleet, options))
    found, seeds = results.summaries(runs), range(1, options.seeds + 1)
    if options.write:
        plots.draw(found, report.PAGES / "routing.svg")
    report.finish("routing", results.figures(found), results.goals(runs), seeds=seeds)


if __name__ == "__main__":
    main()
