"""Autoscalers on the same traces: make bench-backtest ARGS=--write

Every trace is played on simulated engines (simulator/simulation.py) under Antefix, without warm
replicas, with one and with two; under Ray Serve's autoscaler, Kubernetes' HPA and KEDA, each with
several targets, with the usual routing and with Antefix's; on as many fixed replicas as there may
be; and with all of them requested when load first rises. Synthetic traces are played for the seeds
that goals.yaml reports, on which nothing was tuned (--tuning: the others). Tables have the mean,
goals the median. Without the recorded traces the others are played, and no plot is written.

--keep FILE resumes an interrupted backtest of the same commit and engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.backtest import results
from benchmarks.backtest.plays import play_all
from benchmarks.backtest.scenarios import ALL, PLOTTED, RULE, as_played, keys, scenario
from benchmarks.harness.results import public_data, report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.harness.results.options import add_keep, add_seeds, add_write, parser_of
from simulator import engine_profile, plot
from simulator.engine_profile import EngineProfile
from simulator.results import as_json
from simulator.simulation import run


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
    parser = parser_of("backtest.run", __doc__)
    add_seeds(parser, RULE)
    add_keep(parser)
    add_write(parser, "backtest.svg")
    options = parser.parse_args()
    engine = engine_profile.read(engine_profile.SHIPPED)
    _, left_out = public_data.recorded_traces()
    if left_out and options.write:
        sys.exit(f"The plot would lack the recorded traces: {left_out}.")
    if left_out:
        print(f"The recorded traces are left out: {left_out}.", file=sys.stderr)
    scenarios = keys(options.seeds, not left_out)
    found = play_all(scenarios, engine, KeptParts(options.keep, "backtest", RULE, engine=engine))
    if options.write:
        draw(scenarios, engine, report.PAGES / "backtest.svg")
    figures = {each.name: as_json(each.means) for each in found}
    figures[ALL] = {policy: vars(of) for policy, of in results.totals_of_means(found).items()}
    report.finish("backtest", figures, results.goals(found), seeds=options.seeds)


if __name__ == "__main__":
    main()
