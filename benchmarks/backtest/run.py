"""Our autoscaler, Ray Serve's, HPA and KEDA on the same traces: make bench-backtest ARGS=--write

Every trace is played on simulated engines (simulator/simulation.py) under our policy, without warm
replicas, with one and with two; under Ray Serve's autoscaler, Kubernetes' HPA and KEDA, each with
several targets, with the usual routing and with ours; on as many fixed replicas as there may be;
and with all of them asked for when more first begins to come. Synthetic ones are played for the
seeds that goals.yaml reports, on which nothing was tuned (--tuning: the others); tables have
the mean, goals count the median. Where the recorded ones cannot be had the others are played alone,
it says so before it ends, and writes no page.

--keep FILE resumes an interrupted backtest of the same commit.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.backtest import page, results
from benchmarks.backtest.plays import Play, Played, kept_plays, play_all, wanted
from benchmarks.backtest.results import ScenarioResult
from benchmarks.backtest.scenarios import (
    OURS,
    PLOTTED,
    POOLS,
    RULE,
    SERVE,
    as_played,
    keys,
    lacks_recorded,
    policies,
    scenario,
)
from benchmarks.stand import report
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.options import add_keep, add_write, parser_of
from common.errors import Problem
from simulator import engine_profile, plot
from simulator.engine_profile import EngineProfile
from simulator.results import as_json, best_within, table
from simulator.simulation import run


def found_in(played: Played, scenarios: Sequence[tuple[str, int]]) -> list[ScenarioResult]:
    seeds: dict[str, list[int]] = {}
    for name, seed in scenarios:
        seeds.setdefault(name, []).append(seed)
    return [
        ScenarioResult(
            name,
            POOLS[name],
            {
                policy: [played[Play(name, seed, policy)] for seed in of]
                for policy in policies(name)
            },
        )
        for name, of in seeds.items()
    ]


def frontier(found: ScenarioResult) -> str:
    """Ray Serve's best `target_ongoing_requests` for no more replica-hours than ours."""
    means = found.means
    serve = [(policy, s) for policy, s in means.items() if policy.startswith(SERVE)]
    best = best_within(means[OURS].replica_hours, serve)
    if best is None:
        policy, s = min(serve, key=lambda one: one[1].replica_hours)
        return (
            f"{found.name}: ours attains {means[OURS].attainment:.2%} in"
            f" {means[OURS].replica_hours:.2f} replica-hours; Ray Serve's cheapest ({policy})"
            f" takes {s.replica_hours:.2f} and attains {s.attainment:.2%}"
        )
    policy, s = best
    return (
        f"{found.name}: within our replica-hours Ray Serve attains {s.attainment:.2%} at"
        f" best ({policy}), ours {means[OURS].attainment:.2%}"
    )


def draw(scenarios: Sequence[tuple[str, int]], engine: EngineProfile, file: Path) -> None:
    """Each trace with its first seed."""
    columns, drawn = [], set()
    for name, seed in scenarios:
        if name not in drawn:
            drawn.add(name)
            of = scenario(name, seed)
            columns.append([run(of.trace, *as_played(policy, of, engine)) for policy in PLOTTED])
    plot.draw(columns, file)


@stopped_in_the_end()
def main() -> None:
    options = _options()
    engine = engine_profile.read(options.calibration)
    began = time.monotonic()
    left_out = lacks_recorded()
    if left_out and options.write:
        sys.exit(f"The page would lack the recorded traces: {left_out}.")
    scenarios = keys(options.seeds, not left_out)
    try:
        kept = kept_plays(options.keep, engine)
    except Problem as problem:
        sys.exit(f"error: {problem}")
    plays = wanted(scenarios)

    def tell(done: Played, last: Play) -> None:
        print(f"{len(done)} of {len(plays)} plays", end="\r", file=sys.stderr)

    found = found_in(play_all(plays, engine, kept, tell), scenarios)
    for each in found:
        print(f"\n## {each.name}\n\n{table(each.means)}\n\n{frontier(each)}", flush=True)
    of = results.totals_of_means(found)
    print(f"\n## All traces\n\n{page.totals_table(of)}\n\n{results.compared(found)}")
    judged = results.goals(found)
    if options.write:
        text = page.page(
            found,
            frontiers=[frontier(each) for each in found],
            goals=judged,
            compared=results.compared(found),
            engine=engine,
            command=report.command("backtest"),
            minutes=(time.monotonic() - began) / 60,
            seeds=options.seeds,
            machine=report.machine_in_words(),
        )
        (report.PAGES / "backtest.md").write_text(text)
        draw(scenarios, engine, report.PAGES / "backtest.svg")
    if left_out:
        print(f"The recorded traces were left out: {left_out}.", file=sys.stderr)
    figures = {each.name: as_json(each.means) for each in found}
    figures["all"] = {policy: vars(total) for policy, total in of.items()}
    report.finish("backtest", figures, judged, seeds=options.seeds)


def _seeds(options: argparse.Namespace) -> tuple[int, ...]:
    return RULE.tuning if options.tuning else tuple(options.seeds or RULE.reported)


def _options() -> argparse.Namespace:
    parser = parser_of("backtest.run", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="not those of goals.yaml")
    parser.add_argument("--tuning", action="store_true", help="the seeds that may be tuned on")
    parser.add_argument("--calibration", type=Path, default=engine_profile.SHIPPED)
    add_keep(parser)
    add_write(parser, "backtest.{md,svg}")
    options = parser.parse_args()
    options.seeds = _seeds(options)
    if options.write and options.seeds != RULE.reported:
        parser.error(f"with --write the seeds are {', '.join(map(str, RULE.reported))}")
    return options


if __name__ == "__main__":
    main()
