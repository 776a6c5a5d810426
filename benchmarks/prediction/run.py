"""Compare predicted times to first token with measured ones: make bench-prediction

The fleet and the traffic are those of the routing benchmark, under policy `prefix`. Workloads run
one after the other, each with cold caches, so what was learned from one is applied to the next. A
prediction is compared with the time from placement to the first token, as the gateway measures it.
The first requests, from which a gateway learns anything at all, do not count.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.fleets.shape_only import with_shapes_only
from benchmarks.harness.load.conversation_player import Answer
from benchmarks.harness.load.routed_runs import FLEET, WORKLOADS, RoutingBench
from benchmarks.harness.results import report
from benchmarks.harness.results.options import add_fleet, parser_of
from cli.gateway import stream_client
from common.percentiles import percentile

MEAN_GOAL, P90_GOAL = 0.15, 0.30
# The duration of a run's arrivals.
SECONDS = 16.0


async def measure(fleet: BenchFleet, seeds: int, rate_times: float) -> dict[str, list[Answer]]:
    """The answers of each workload, of all together, and of those that were alone."""
    answers: dict[str, list[Answer]] = {workload: [] for workload in WORKLOADS}
    alone: list[Answer] = []
    async with stream_client.session() as http:
        bench = RoutingBench(http, fleet)
        await bench.prepare()
        for seed in range(1, seeds + 1):
            for workload, found in answers.items():
                run = await bench.run(workload, "prefix", seed, SECONDS, rate_times)
                found.extend(run.answers)
                alone.extend(alone_of(run.answers))
                print(f"seed {seed} {workload:13} {_in_words(run.answers)}", flush=True)
    together = [answer for found in answers.values() for answer in found]
    return {**answers, "all": together, "alone": alone}


def alone_of(answers: Sequence[Answer]) -> list[Answer]:
    """Those of one run during which no other was in flight until their first token."""

    def beside(one: Answer, other: Answer) -> bool:
        return other.started < one.first_byte and one.started < other.ended

    return [
        answer
        for answer in answers
        if not any(beside(answer, other) for other in answers if other is not answer)
    ]


def errors(answers: Sequence[Answer]) -> list[float]:
    """How far each prediction was off, relative to the measured value, with its sign."""
    return [
        (answer.predicted_ttft_s - answer.engine_ttft_s) / answer.engine_ttft_s
        for answer in answers
        if answer.predicted_ttft_s is not None and answer.engine_ttft_s
    ]


def figures_of(answers: Sequence[Answer]) -> dict[str, Any]:
    off = errors(answers)
    absolute = list(map(abs, off))
    ttfts = [answer.engine_ttft_s or 0.0 for answer in answers]
    return {
        "requests": len(off),
        "mean_absolute_error": round(statistics.fmean(absolute), 4),
        "p50_absolute_error": round(percentile(absolute, 50), 4),
        "p90_absolute_error": round(percentile(absolute, 90), 4),
        "mean_error": round(statistics.fmean(off), 4),
        "ttft_p50_s": round(percentile(ttfts, 50), 4),
    }


def _in_words(answers: Sequence[Answer]) -> str:
    of = figures_of(answers)
    return (
        f"{of['requests']:3} requests, off by {of['mean_absolute_error']:.1%} on average,"
        f" p90 {of['p90_absolute_error']:.1%}, bias {of['mean_error']:+.1%},"
        f" TTFT p50 {of['ttft_p50_s']:.3f} s"
    )


def main() -> None:
    parser = parser_of("prediction.run", __doc__)
    parser.add_argument("--seeds", type=int, default=2, help="how often each run is repeated")
    parser.add_argument("--rate-times", type=float, default=1.0, help="multiplies the requests")
    add_fleet(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="antefix-shapes-") as shapes:
        of = with_shapes_only(options.fleet, Path(shapes)) if options.fleet else None
        with running_as(of or with_small_model(FLEET)) as fleet:
            answers = asyncio.run(measure(fleet, options.seeds, options.rate_times))
    figures = {name: figures_of(found) for name, found in answers.items() if errors(found)}
    of_all = figures["all"]
    goals = {
        "mean_absolute_error": report.goal(of_all["mean_absolute_error"], at_most=MEAN_GOAL),
        "p90_absolute_error": report.goal(of_all["p90_absolute_error"], at_most=P90_GOAL),
    }
    report.finish("prediction", figures, goals, seeds=range(1, options.seeds + 1))


if __name__ == "__main__":
    main()
