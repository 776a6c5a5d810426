"""Other routers in front of the same engines: make bench-peers ARGS="--seeds 1 2 3 --write"

Two real vLLM engines serve the same traffic behind each router in turn. For each seed and case the
routers run in another order, each started anew, with empty caches. `cases.py` has the requests,
`routers.py` the routers' settings. Peers are installed from PyPI into separate environments, the
first time. A small run: --routers antefix round_robin smg --workloads multi_turn --seeds 1

Antefix is in front of its replicas, the others in front of vLLM's own servers. So each seed starts
engines twice, in an order of chance. The seeds are those of goals.yaml; --seeds N is for a try.

With --write runs are kept in docs/benchmarks/peers.jsonl, seed by seed, and those that are there
are not run again: an interrupted run resumes. --judge FILE measures nothing and judges the runs in
that file.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import add_write, parser_of
from benchmarks.peers import engines, results
from benchmarks.peers.bench import PeersBench, client
from benchmarks.peers.cases import CASES
from benchmarks.peers.kept_runs import KeptRuns
from benchmarks.peers.results import PeerRun, Unmeasured
from benchmarks.peers.routers import OURS, ROUTERS

RUNS = report.PAGES / "peers.jsonl"
REQUESTS = results.RULE.settings["requests"]


def measure(seed: int, small_caches: bool, options: argparse.Namespace, kept: KeptRuns) -> None:
    """Of the options' cases and routers all that is not kept yet, before any run of it is kept."""
    suited = {
        name: [router for router in options.routers if ROUTERS[router].suits(case)]
        for name, case in CASES.items()
        if name in options.workloads and case.small_caches is small_caches
    }
    wanted = {case: of for case, of in suited.items() if not kept.have(case, seed, of)}
    runs: dict[str, list[PeerRun | Unmeasured]] = defaultdict(list)
    for ours in random.Random(f"engines {small_caches} {seed}").sample([True, False], 2):
        of_these = {
            case: [router for router in routers if (router == OURS) is ours]
            for case, routers in wanted.items()
        }
        if any(of_these.values()):
            with (
                tempfile.TemporaryDirectory(prefix="afx-peers-") as folder,
                engines.running(Path(folder), small_caches=small_caches, ours=ours) as backends,
            ):
                asyncio.run(_measure(backends, of_these, seed, runs))
    for case, found in runs.items():
        kept.replace(case, seed, found)


async def _measure(
    backends: engines.Backends,
    wanted: Mapping[str, Sequence[str]],
    seed: int,
    runs: dict[str, list[PeerRun | Unmeasured]],
) -> None:
    async with client() as http:
        bench = PeersBench(http, backends)
        for case, routers in wanted.items():
            for router in random.Random(f"{case} {seed}").sample(routers, len(routers)):
                runs[case].append(await _run(bench, case, router, seed))


async def _run(bench: PeersBench, case: str, router: str, seed: int) -> PeerRun | Unmeasured:
    try:
        run = await bench.run(case, router, seed, REQUESTS)
    except (RuntimeError, TimeoutError) as error:
        if router == OURS:
            raise
        print(f"{case} behind {router}: {error!r}", file=sys.stderr, flush=True)
        return Unmeasured(case, router, seed, (str(error).splitlines() or ["not in time"])[-1])
    if run.failed:
        print(f"{run.failed} failed; the first: {run.failure}", file=sys.stderr)
    print(
        f"seed {seed} {case:16} {router:14} {run.requests:3} requests,"
        f" TTFT mean {1000 * run.ttft_mean:.0f} ms, p90 {1000 * run.ttft_p90:.0f},"
        f" end to end {1000 * run.e2e_mean:.0f},"
        f" cached {run.cached_ratio:.3f}, router's CPU {run.cpu_ms_a_request:.1f} ms a request",
        flush=True,
    )
    return run


@stopped_in_the_end()
def main() -> None:
    options = _options()
    kept = KeptRuns(options.judge or (RUNS if options.write else None))
    if options.judge is None:
        for router in options.routers:
            ROUTERS[router].prepare()
        for small_caches in (False, True):
            for seed in options.seeds:
                measure(seed, small_caches, options, kept)
    rank = {name: i for i, name in enumerate((*CASES, *ROUTERS))}
    found = results.grouped(
        sorted(kept.measured, key=lambda run: (rank[run.case], rank[run.router], run.seed))
    )
    figures = {**results.figures(found), **results.note(found, kept.unmeasured)}
    report.finish("peers", figures, results.goals(found), seeds=results.seeds(found))


def _options() -> argparse.Namespace:
    parser = parser_of("peers.run", __doc__)
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=results.RULE.reported,
        metavar="N",
        help="which seeds to run, each with every case and router; otherwise those of goals.yaml",
    )
    cases, routers = tuple(CASES), tuple(ROUTERS)
    parser.add_argument("--workloads", nargs="+", choices=cases, default=cases)
    # those with separate engines take minutes to start, for each run
    quick = tuple(name for name in routers if not ROUTERS[name].has_engines)
    parser.add_argument(
        "--routers", nargs="+", choices=routers, default=quick, help=f"else {', '.join(quick)}"
    )
    add_write(parser, "peers.jsonl")
    parser.add_argument("--judge", type=Path, metavar="FILE", help="runs that were kept")
    options = parser.parse_args()
    if options.write and not options.judge and tuple(options.seeds) != results.RULE.reported:
        parser.error(f"with --write seeds are {', '.join(map(str, results.RULE.reported))}")
    return options


if __name__ == "__main__":
    main()
