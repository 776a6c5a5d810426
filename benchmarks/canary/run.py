"""Canaries that are worse, canaries that are not, and splits: make bench-canary

Canaries run in virtual time, with the product's judgment in eight gateways. Splits go through the
product's conversations in eight gateways and a real Redis. Runs use all cores.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.canary.played import FAILED, CanaryFault, CanaryTraffic, Ended, play
from benchmarks.canary.split import Split, split
from benchmarks.harness.fleets import own_redis
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.options import add_seeds, parser_of
from deployments.fleet.settings.model_names import CanarySettings

RULE = rules.of("canary")
SETTINGS = RULE.settings
FAULTS = {
    "three_times_tpot": CanaryFault(tpot=3.0),
    "five_percent_errors": CanaryFault(failed=0.05),
    # No goals: what an operator would ask in addition.
    "twice_tpot": CanaryFault(tpot=2.0),
    "all_fail": CanaryFault(failed=1.0),
    "never_ends": CanaryFault(cut=1.0),
    "three_times_tpot_late": CanaryFault(tpot=3.0, after_s=500.0),
}
EQUALS = "equals"
IN_TIME_REQUESTS, IN_TIME_S = 20, 10.0
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Run:
    """`kind`: of FAULTS, or EQUALS."""

    kind: str
    seed: int
    number: int


def runs(seeds: Sequence[int]) -> Iterator[Run]:
    for kind in (*FAULTS, EQUALS):
        count = SETTINGS["runs_of_equals" if kind == EQUALS else "runs_of_a_fault"]
        yield from (Run(kind, seed, number) for seed in seeds for number in range(count))


def played(run: Run) -> tuple[str, Ended]:
    if run.kind == EQUALS:
        canary = CanarySettings(pool="canary", step_s=SETTINGS["step_s_of_equals"])
    else:
        canary = CanarySettings(pool="canary", steps=[SETTINGS["step_of_faults"]])
    of = CanaryTraffic(
        SETTINGS["gateways"],
        SETTINGS["requests_per_second"],
        SETTINGS["wave"],
        SETTINGS["wave_s"],
        canary,
    )
    fault = FAULTS.get(run.kind, CanaryFault())
    # Faults begin at any time of the wave.
    warm_up_s = SETTINGS["warm_up_s"] + 37.0 * run.number
    return run.kind, play(of, fault, 1000 * run.seed + run.number, warm_up_s, MOST_REQUESTS)


def figures_of(found: Sequence[tuple[str, Ended]], splits: Sequence[Split]) -> dict[str, Any]:
    """By kind: how it ended, and requests and seconds until no gateway sent the canary one more."""
    figures: dict[str, Any] = {"base_failed": FAILED, "splits": [asdict(one) for one in splits]}
    for kind in dict.fromkeys(kind for kind, _ in found):
        ended = [one for name, one in found if name == kind]
        figures[kind] = {
            "runs": len(ended),
            "ended": dict(Counter(one.status for one in ended)),
            "why": dict(Counter(one.why for one in ended)),
            "requests": _spread([one.requests for one in ended]),
            "seconds": _spread([one.seconds for one in ended]),
            "in_time": sum(map(_in_time, ended)) / len(ended),
        }
    return figures


def _in_time(ended: Ended) -> bool:
    is_soon = ended.requests <= IN_TIME_REQUESTS or ended.seconds <= IN_TIME_S
    return ended.status == "aborted" and is_soon


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 1),
        "least": round(min(values), 1),
        "most": round(max(values), 1),
    }


def goals_of(figures: dict[str, Any]) -> dict[str, Any]:
    equals = figures[EQUALS]
    found = {
        "three_times_tpot_off_in_time": figures["three_times_tpot"]["in_time"],
        "five_percent_errors_off_in_time": figures["five_percent_errors"]["in_time"],
        "equals_aborted": equals["ended"].get("aborted", 0) / equals["runs"],
        "furthest_from_weights": max(one["furthest"] for one in figures["splits"]),
        "conversations_moved": max(one["moved"] for one in figures["splits"]),
    }
    return {name: report.goal(figure, **RULE.bounds[name]) for name, figure in found.items()}


async def _splits(url: str, seeds: Sequence[int]) -> list[Split]:
    gateways, weights = SETTINGS["gateways"], SETTINGS["weights"]
    requests, turns = SETTINGS["split_requests"], SETTINGS["turns"]
    return [await split(url, gateways, weights, requests, turns, seed) for seed in seeds]


def main() -> None:
    parser = parser_of("canary.run", __doc__)
    add_seeds(parser, RULE)
    seeds = parser.parse_args().seeds
    with own_redis.unbounded() as url:
        splits = asyncio.run(_splits(url, seeds))
    with ProcessPoolExecutor() as pool:
        found = list(pool.map(played, runs(seeds), chunksize=4))
    figures = figures_of(found, splits)
    report.finish("canary", figures, goals_of(figures), seeds=seeds)


if __name__ == "__main__":
    main()
