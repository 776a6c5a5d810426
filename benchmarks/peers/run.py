"""Other routers in front of the same engines: make bench-peers ARGS="--seeds 3 --write"

Two real vLLM engines serve the same traffic behind each router in turn: for each seed and case the
routers come in another order, each started anew, with empty caches. `cases.py` has what is asked of
them, `routers.py` how they are set. Peers are installed from PyPI into environments of their own,
the first time. A small run: --routers antefix round_robin smg --workloads multi_turn --seeds 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.ending import stopped_in_the_end
from benchmarks.peers import engines, page, results
from benchmarks.peers.bench import PeersBench, client
from benchmarks.peers.cases import CASES
from benchmarks.peers.results import PeerRun
from benchmarks.peers.routers import OURS, ROUTERS, Backends

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "peers.md"


async def measure(
    backends: Backends, cases: Sequence[str], options: argparse.Namespace
) -> tuple[list[PeerRun], list[str]]:
    """The runs; and of those that came to nothing, which and why, since a peer's failure is no
    reason to lose the others'."""
    runs: list[PeerRun] = []
    unmeasured: list[str] = []
    order = random.Random(0)
    async with client() as http:
        bench = PeersBench(http, backends)
        for seed in range(1, options.seeds + 1):
            for case in cases:
                routers = [name for name in options.routers if ROUTERS[name].suits(CASES[case])]
                for router in order.sample(routers, len(routers)):
                    try:
                        runs.append(await bench.run(case, router, seed, options.requests))
                    except (RuntimeError, TimeoutError) as error:
                        if router == OURS:
                            raise
                        print(f"{case} behind {router}: {error!r}", file=sys.stderr, flush=True)
                        last = (str(error).splitlines() or ["not in time"])[-1]
                        unmeasured.append(f"{case} behind {router}, seed {seed}: {last}")
                    else:
                        _tell(runs[-1])
    return runs, unmeasured


def _tell(run: PeerRun) -> None:
    if run.failed:
        print(f"{run.failed} failed; the first: {run.failure}", file=sys.stderr)
    print(
        f"seed {run.seed} {run.case:16} {run.router:14} {run.requests:3} requests,"
        f" TTFT mean {1000 * run.ttft_mean:.0f} ms, p99 {1000 * run.ttft_p99:.0f},"
        f" cached {run.cached_ratio:.3f}, router's CPU {run.cpu_ms_a_request:.1f} ms a request",
        flush=True,
    )


@stopped_in_the_end()
def main() -> None:
    options = _options()
    for router in options.routers:
        ROUTERS[router].prepare()
    began = time.monotonic()
    runs: list[PeerRun] = []
    unmeasured: list[str] = []
    for small_caches in (False, True):
        cases = [name for name in options.workloads if CASES[name].small_caches is small_caches]
        if not cases:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="afx-peers-") as folder,
            engines.running(Path(folder), small_caches) as backends,
        ):
            measured, missing = asyncio.run(measure(backends, cases, options))
        runs += measured
        unmeasured += missing
    rank = {name: i for i, name in enumerate((*options.workloads, *options.routers))}
    found = results.grouped(sorted(runs, key=lambda run: (rank[run.case], rank[run.router])))
    judged = results.goals(found)
    print("\n" + page.tables(found) + "\n")
    if options.write:
        minutes = (time.monotonic() - began) / 60
        command = report.command("peers")
        PAGE.write_text(
            page.page(found, unmeasured, judged, command, minutes, report.machine_in_words())
        )
    report.finish("peers", results.figures(found), judged)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.run", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--seeds", type=int, default=3, help="how often each run is repeated")
    parser.add_argument("--requests", type=int, default=60, help="of a run, about")
    cases, routers = tuple(CASES), tuple(ROUTERS)
    parser.add_argument("--workloads", nargs="+", choices=cases, default=cases)
    # those with engines of their own take minutes to start, for each run
    quick = tuple(name for name in routers if not ROUTERS[name].has_engines)
    parser.add_argument(
        "--routers", nargs="+", choices=routers, default=quick, help=f"else {', '.join(quick)}"
    )
    parser.add_argument("--write", action="store_true", help="docs/benchmarks/peers.md")
    options = parser.parse_args()
    if options.seeds < 1 or options.requests < 1:
        parser.error("--seeds and --requests must be at least 1")
    return options


if __name__ == "__main__":
    main()
