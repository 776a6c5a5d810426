"""What a faster start buys: make bench-startup ARGS=--write

The backtest's traces on which a replica is needed at once, under our policy alone, with replicas
that take 5, 30 and 120 s to start; each also with one warm replica, to see what that is still
worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.backtest.scenarios import OURS, RULE, WARM, Scenario, scenario
from benchmarks.stand import report
from benchmarks.stand.options import add_write, parser_of
from simulator import engine_profile
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, as_json, mean, summary, table
from simulator.simulation import run

STARTUP_S = (5.0, 30.0, 120.0)
TRACES = ("ramp", "cliff", "bursts")


def play(seeds: Sequence[Scenario], engine: EngineProfile) -> dict[str, SimulationSummary]:
    """Policy and start -> the mean of a scenario's seeds."""
    found = {}
    for policy, warm_replicas in ((OURS, 0), (WARM, 1)):
        for startup_s in STARTUP_S:
            played = []
            for of in seeds:
                settings = replace(
                    of.pool.settings(engine, of.seed),
                    startup_s=startup_s,
                    warm_replicas=warm_replicas,
                )
                played.append(run(of.trace, settings, OURS))
            found[row(policy, startup_s)] = mean([summary(result) for result in played])
    return found


def row(policy: str, startup_s: float) -> str:
    return f"{policy}, start {startup_s:g} s"


def goals(found: Mapping[str, Mapping[str, SimulationSummary]]) -> dict[str, Any]:
    """A faster start never costs attainment."""
    return {
        f"{name}_attainment_gained_by_a_start_of_5_s": report.goal(
            of[row(OURS, STARTUP_S[0])].attainment - of[row(OURS, STARTUP_S[-1])].attainment,
            at_least=0.0,
        )
        for name, of in found.items()
    }


def page(
    found: Mapping[str, Mapping[str, SimulationSummary]], promise: str, seeds: int, machine: str
) -> str:
    """docs/benchmarks/startup.md; `machine` is what `report.machine_in_words` says."""
    chapters = "\n\n".join(f"### {name}\n\n{table(of)}" for name, of in found.items())
    return f"""\
# What a faster start buys

<!-- Written by `{report.command("startup")}`. -->

Simulated engines, real decisions, as in [the backtest](backtest.md), whose page says what the
columns mean and what the engine is: an estimate, no GPU took part. {promise}.
{"One play each" if seeds == 1 else f"Means of {seeds} plays"}. Only how long a replica takes to
start differs, and whether one more is kept warm: the forecast looks as far ahead as a start takes,
so a faster one also asks for less in advance.

{chapters}

`antefix backtest --startup-s 5 --startup-s 30 --startup-s 120` plays your own trace so.
[What a start consists of](../architecture.md#how-an-engine-starts), and what shortens it, is told
with the architecture.

{machine}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("backtest.startup", __doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=RULE.reported, metavar="N")
    add_write(parser, "startup.md")
    options = parser.parse_args(arguments)
    engine = engine_profile.read(engine_profile.SHIPPED)
    found = {}
    for name in TRACES:
        played = [scenario(name, seed) for seed in options.seeds]
        found[name] = play(played, engine)
        print(f"\n## {name}\n\n{table(found[name])}")
    if options.write:
        seeds, machine = len(options.seeds), report.machine_in_words()
        (report.PAGES / "startup.md").write_text(
            page(found, played[0].pool.promise, seeds, machine)
        )
    figures = {name: as_json(of) for name, of in found.items()}
    report.finish("startup", figures, goals(found), seeds=options.seeds)


if __name__ == "__main__":
    main()
