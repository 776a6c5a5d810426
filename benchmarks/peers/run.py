"""Other routers in front of the same engines: make bench-peers ARGS="--seeds 1 2 3 --write"

Two real vLLM engines serve the same traffic behind each router in turn: for each seed and case the
routers come in another order, each started anew, with empty caches. `cases.py` has what is asked of
them, `routers.py` how they are set. Peers are installed from PyPI into environments of their own,
the first time. A small run: --routers antefix round_robin smg --workloads multi_turn --seeds 1

With --write runs are kept in peers.jsonl beside the page, and those that are there are not run
again: it can be ended and goes on where it was. Delete the file to measure anew.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.ending import stopped_in_the_end
from benchmarks.peers import engines, page, results
from benchmarks.peers.bench import PeersBench, client
from benchmarks.peers.cases import CASES
from benchmarks.peers.kept_runs import KeptRuns
from benchmarks.peers.results import PeerRun, Unmeasured
from benchmarks.peers.routers import OURS, ROUTERS, Backends

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
PAGE, RUNS = DOCS / "peers.md", DOCS / "peers.jsonl"
REQUESTS = 60


Wanted = Sequence[tuple[str, int, Sequence[str]]]
"""Cases and seeds, each with its routers."""


def wanted_of(options: argparse.Namespace, kept: KeptRuns) -> Wanted:
    """What is not kept yet."""
    suited = {
        case: [name for name in options.routers if ROUTERS[name].suits(CASES[case])]
        for case in options.workloads
    }
    return [
        (case, seed, routers)
        for seed in options.seeds
        for case, routers in suited.items()
        if not kept.have(case, seed, routers)
    ]


async def measure(backends: Backends, wanted: Wanted, requests: int, kept: KeptRuns) -> None:
    async with client() as http:
        bench = PeersBench(http, backends)
        for case, seed, routers in wanted:
            shuffled = random.Random(f"{case} {seed}").sample(routers, len(routers))
            runs = [await _run(bench, case, router, seed, requests) for router in shuffled]
            kept.replace(case, seed, runs)


async def _run(
    bench: PeersBench, case: str, router: str, seed: int, requests: int
) -> PeerRun | Unmeasured:
    try:
        run = await bench.run(case, router, seed, requests)
    except (RuntimeError, TimeoutError) as error:
        if router == OURS:
            raise
        print(f"{case} behind {router}: {error!r}", file=sys.stderr, flush=True)
        return Unmeasured(case, router, seed, (str(error).splitlines() or ["not in time"])[-1])
    _tell(run)
    return run


def _tell(run: PeerRun) -> None:
    if run.failed:
        print(f"{run.failed} failed; the first: {run.failure}", file=sys.stderr)
    print(
        f"seed {run.seed} {run.case:16} {run.router:14} {run.requests:3} requests,"
        f" TTFT mean {1000 * run.ttft_mean:.0f} ms, p90 {1000 * (run.ttft_p90 or 0):.0f},"
        f" cached {run.cached_ratio:.3f}, router's CPU {run.cpu_ms_a_request:.1f} ms a request",
        flush=True,
    )


@stopped_in_the_end()
def main() -> None:
    options = _options()
    for router in options.routers:
        ROUTERS[router].prepare()
    kept = KeptRuns(RUNS if options.write else None)
    for small_caches in (False, True):
        wanted = [
            one for one in wanted_of(options, kept) if CASES[one[0]].small_caches is small_caches
        ]
        if not wanted:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="afx-peers-") as folder,
            engines.running(Path(folder), small_caches) as backends,
        ):
            asyncio.run(measure(backends, wanted, options.requests, kept))
    rank = {name: i for i, name in enumerate((*CASES, *ROUTERS))}
    found = results.grouped(
        sorted(kept.measured, key=lambda run: (rank[run.case], rank[run.router], run.seed))
    )
    judged = results.goals(found)
    print("\n" + page.tables(found) + "\n")
    if options.write:
        PAGE.write_text(page.page(found, kept.unmeasured, judged))
    report.finish("peers", results.figures(found), judged, seeds=results.seeds(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.run", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=(1, 2, 3),
        metavar="N",
        help="which seeds to run, each with every case and router; else 1 2 3",
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of a run, about")
    cases, routers = tuple(CASES), tuple(ROUTERS)
    parser.add_argument("--workloads", nargs="+", choices=cases, default=cases)
    # those with engines of their own take minutes to start, for each run
    quick = tuple(name for name in routers if not ROUTERS[name].has_engines)
    parser.add_argument(
        "--routers", nargs="+", choices=routers, default=quick, help=f"else {', '.join(quick)}"
    )
    parser.add_argument(
        "--write", action="store_true", help="docs/benchmarks/peers.md and the runs beside it"
    )
    options = parser.parse_args()
    if options.requests < 1:
        parser.error("--requests must be at least 1")
    if options.write and options.requests != REQUESTS:
        parser.error(f"with --write runs have {REQUESTS} requests, as those have that are kept")
    return options


if __name__ == "__main__":
    main()
