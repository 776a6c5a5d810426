"""What a faster start brings: make bench-startup ARGS=--write

The backtest's traces on which a replica is needed at once, under Antefix, with replicas that take
5, 30 and 120 s to start; each also with one warm replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.backtest.plays import played
from benchmarks.backtest.scenarios import OURS, RULE, WARM, Scenario, scenario
from benchmarks.harness.results import report
from benchmarks.harness.results.options import add_seeds, add_write, parser_of
from simulator import engine_profile
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, as_json, mean

STARTUP_S = (5.0, 30.0, 120.0)
TRACES = ("ramp", "cliff", "bursts")


def play(seeds: Sequence[Scenario], engine: EngineProfile) -> dict[str, SimulationSummary]:
    """Policy and start -> the mean of a scenario's seeds."""
    found = {}
    for policy in (OURS, WARM):
        for startup_s in STARTUP_S:
            other = msgspec.structs.replace(engine, startup_s=startup_s)
            found[row(policy, startup_s)] = mean([played(of, policy, other) for of in seeds])
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
    found: Mapping[str, Mapping[str, SimulationSummary]],
    seeds: Sequence[int],
    command: str,
    machine: str,
) -> str:
    """docs/benchmarks/startup.md; `machine` is what `report.machine_in_words` says."""
    cells = {
        (f"`{policy}`", name): f"{s.attainment:.2%}, {s.replica_hours:.2f}, {s.rejected:.0f}"
        for name, of in found.items()
        for policy, s in of.items()
    }
    fast, slow = row(OURS, STARTUP_S[0]), row(OURS, STARTUP_S[-1])
    gains = "; ".join(
        f"{of[fast].attainment:.1%} instead of {of[slow].attainment:.1%} on the {name}"
        for name, of in found.items()
    )
    return report.filled(
        __file__,
        fast=STARTUP_S[0],
        slow=STARTUP_S[-1],
        gains=gains,
        seeds=", ".join(map(str, seeds)),
        cells=report.grid("Policy", cells),
        command=command,
        machine=machine,
    )


def main() -> None:
    parser = parser_of("backtest.startup", __doc__)
    add_seeds(parser, RULE)
    add_write(parser, "startup.md")
    options = parser.parse_args()
    engine = engine_profile.read(engine_profile.SHIPPED)
    found = {
        name: play([scenario(name, seed) for seed in options.seeds], engine) for name in TRACES
    }
    command, machine = report.command("startup"), report.machine_in_words()
    if options.write:
        text = page(found, options.seeds, command, machine)
        (report.PAGES / "startup.md").write_text(text)
    figures = {name: as_json(of) for name, of in found.items()}
    report.finish("startup", figures, goals(found), seeds=options.seeds)


if __name__ == "__main__":
    main()
