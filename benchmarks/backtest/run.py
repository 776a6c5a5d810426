"""Autoscalers on the same traces: make bench-backtest ARGS=--write

Every trace is played on simulated engines (simulator/simulation.py) under Antefix, without warm
replicas, with one and with two; under Ray Serve's autoscaler, Kubernetes' HPA and KEDA, each with
several targets, with the usual routing and with Antefix's; on as many fixed replicas as there may
be; and with all of them requested when load first rises. Synthetic traces are played for the seeds
that goals.yaml reports, on which nothing was tuned (--tuning: the others). Tables have the mean,
goals the median. Without the recorded traces the others are played, and no page is written.

--keep FILE resumes an interrupted backtest of the same commit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.backtest import page, results
from benchmarks.backtest.plays import Play, Played, kept_plays, play_all, wanted
from benchmarks.backtest.results import ScenarioResult
from benchmarks.backtest.scenarios import ALL, PLOTTED, RULE, as_played, keys, policies, scenario
from benchmarks.stand import public_data, report
from benchmarks.stand.ending import stopped_in_the_end
from benchmarks.stand.options import add_keep, add_write, parser_of
from common.errors import Problem
from simulator import engine_profile, plot
from simulator.engine_profile import EngineProfile
from simulator.results import as_json
from simulator.simulation import run


def found_in(played: Played, scenarios: Sequence[tuple[str, int]]) -> list[ScenarioResult]:
    seeds: dict[str, list[int]] = {}
    for name, seed in scenarios:
        seeds.setdefault(name, []).append(seed)
    return [
        ScenarioResult(
            name,
            {
                policy: [played[Play(name, seed, policy)] for seed in of]
                for policy in policies(name)
            },
        )
        for name, of in seeds.items()
    ]


def draw(scenarios: Sequence[tuple[str, int]], engine: EngineProfile, file: Path) -> None:
    """Each trace with its first seed."""
    first = dict(reversed(scenarios))
    columns = [
        [run(of.trace, *as_played(policy, of, engine)) for policy in PLOTTED]
        for of in (scenario(name, first[name]) for name in dict(scenarios))
    ]
    plot.draw(columns, file)


@stopped_in_the_end()
def main() -> None:
    options = _options()
    engine = engine_profile.read(engine_profile.SHIPPED)
    _, left_out = public_data.recorded_traces()
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
    figures = {each.name: as_json(each.means) for each in found}
    figures[ALL] = {policy: vars(of) for policy, of in results.totals_of_means(found).items()}
    result = report.result("backtest", figures, results.goals(found), seeds=options.seeds)
    if left_out:
        print(f"The recorded traces were left out: {left_out}.", file=sys.stderr)
    else:
        print(page.page(result))
    if options.write:
        (report.PAGES / "backtest.md").write_text(page.page(result))
        draw(scenarios, engine, report.PAGES / "backtest.svg")
    print(json.dumps(result))


def _options() -> argparse.Namespace:
    parser = parser_of("backtest.run", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", metavar="N", help="not those of goals.yaml")
    parser.add_argument("--tuning", action="store_true", help="the seeds that may be tuned on")
    add_keep(parser)
    add_write(parser, "backtest.{md,svg}")
    options = parser.parse_args()
    options.seeds = RULE.tuning if options.tuning else tuple(options.seeds or RULE.reported)
    if options.write and options.seeds != RULE.reported:
        parser.error(f"with --write the seeds are {', '.join(map(str, RULE.reported))}")
    return options


if __name__ == "__main__":
    main()
