"""Our autoscaler and Ray Serve's on the same traces: make bench-backtest ARGS=--write

Every trace is played on simulated engines (simulator/simulation.py) under our policy, with and
without a warm replica, under Ray Serve's default with several `target_ongoing_requests`, and on as
many fixed replicas as there may be. Synthetic ones are played for several seeds; tables have the
mean, goals count the worst. Where the recorded ones cannot be had the others are played alone, it
says so in the end, and writes no page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoscaling.slo import Slo
from benchmarks import public_data, report
from benchmarks.backtest import page
from common.errors import Problem
from simulator import engine_profile, plot, traces
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, as_json, best_within, mean, summary, table
from simulator.simulation import run
from simulator.traces import Trace
from simulator.types import FleetSettings, Result

OURS, SERVE, SERVE_OURS = "antefix", "serve-default", "serve-default+ours"
WARM = f"{OURS}, 1 warm"
# Ray Serve's default is 2.
TARGETS = (1, 4, 8, 16, 32)
# Where there is no beginning to what comes, the fleet has some size already.
FIRST = {"noise": 4}
# A peer published 95.8 % at this many replicas on average, of 8 at most, for 2-10-1 requests/s.
PEER_REPLICAS = 5.93
RAMP_ATTAINMENT = 0.99
PLOTTED = (OURS, SERVE)
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


@dataclass(frozen=True)
class Scenario:
    """A trace for each seed, on a pool of these bounds; SLO in seconds."""

    name: str
    traces: Sequence[Trace]
    ttft_slo: float = 3.0
    min_replicas: int = 2
    max_replicas: int = 8
    initial_replicas: int = 2

    @property
    def promise(self) -> str:
        return (
            f"A first token within {self.ttft_slo:g} s; {self.min_replicas} to"
            f" {self.max_replicas} replicas, {self.initial_replicas} at first"
        )

    def settings(self, engine: EngineProfile, seed: int) -> FleetSettings:
        return FleetSettings(
            hardware=engine.hardware,
            startup_s=engine.startup_s,
            slo=Slo(self.ttft_slo),
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            initial_replicas=self.initial_replicas,
            seed=seed,
        )


@dataclass(frozen=True)
class ScenarioResult:
    """`summaries`: policy -> one a seed. `plotted`: the first seed's."""

    scenario: Scenario
    summaries: Mapping[str, Sequence[SimulationSummary]]
    plotted: Sequence[Result]

    @property
    def means(self) -> dict[str, SimulationSummary]:
        return {policy: mean(found) for policy, found in self.summaries.items()}

    def pairs(self) -> Iterator[tuple[SimulationSummary, SimulationSummary]]:
        """Ours and Ray Serve's default, seed by seed."""
        yield from zip(self.summaries[OURS], self.summaries[SERVE], strict=True)


def scenarios(seeds: Sequence[int], recorded: Sequence[Path]) -> Iterator[Scenario]:
    """`recorded`: those of `_recorded`, or none."""
    for name in traces.SYNTHETIC:
        played = [traces.synthetic(name, seed) for seed in seeds]
        yield Scenario(name, played, initial_replicas=FIRST.get(name, 2))
    if recorded:
        mooncake, azure = map(traces.read, recorded)
        # Mooncake's own SLO; its prompts are that long
        yield Scenario("mooncake", [mooncake], ttft_slo=30.0, max_replicas=16, initial_replicas=8)
        yield Scenario("azure x 2", [azure.scaled(2.0)], initial_replicas=4)


def play(scenario: Scenario, engine: EngineProfile) -> ScenarioResult:
    fixed = f"fixed:{scenario.max_replicas}"
    policies = (
        OURS,
        WARM,
        SERVE,
        SERVE_OURS,
        *(f"{SERVE}:{target}" for target in TARGETS),
        fixed,
    )
    summaries: dict[str, list[SimulationSummary]] = {policy: [] for policy in policies}
    plotted = []
    for seed, trace in enumerate(scenario.traces):
        settings = scenario.settings(engine, seed)
        for policy in policies:
            result = (
                run(trace, replace(settings, warm_replicas=1), OURS)
                if policy == WARM
                else run(trace, settings, policy)
            )
            summaries[policy].append(summary(result))
            if seed == 0 and policy in PLOTTED:
                plotted.append(result)
    return ScenarioResult(scenario, summaries, plotted)


def goals(found: Sequence[ScenarioResult]) -> dict[str, Any]:
    ramp = next(each for each in found if each.scenario.name == "ramp").summaries[OURS]
    worst = min(s.attainment for s in ramp)
    most = max(s.average_replicas for s in ramp)
    judged = {
        "ramp_attainment": report.goal(worst, at_least=RAMP_ATTAINMENT),
        "ramp_average_replicas": report.goal(most, at_most=PEER_REPLICAS),
    }
    for each in found:
        name = each.scenario.name.replace(" ", "_")
        gained = min(ours.attainment - serve.attainment for ours, serve in each.pairs())
        hours = max(ours.replica_hours / serve.replica_hours for ours, serve in each.pairs())
        judged[f"{name}_attainment_above_serve_default"] = report.goal(gained, at_least=0.0)
        judged[f"{name}_replica_hours_of_serve_default"] = report.goal(hours, at_most=1.0)
    return judged


def frontier(found: ScenarioResult) -> str:
    """Ray Serve's best `target_ongoing_requests` for no more replica-hours than ours."""
    means = found.means
    serve = [(policy, s) for policy, s in means.items() if policy.startswith(SERVE)]
    best = best_within(means[OURS].replica_hours, serve)
    if best is None:
        policy, s = min(serve, key=lambda one: one[1].replica_hours)
        return (
            f"{found.scenario.name}: ours attains {means[OURS].attainment:.2%} in"
            f" {means[OURS].replica_hours:.2f} replica-hours; Ray Serve's cheapest ({policy})"
            f" takes {s.replica_hours:.2f} and attains {s.attainment:.2%}"
        )
    policy, s = best
    return (
        f"{found.scenario.name}: within our replica-hours Ray Serve attains {s.attainment:.2%} at"
        f" best ({policy}), ours {means[OURS].attainment:.2%}"
    )


def main() -> None:
    options = _options()
    engine = engine_profile.read(options.calibration)
    began = time.monotonic()
    found = []
    recorded, left_out = _recorded()
    if left_out and options.write:
        sys.exit(f"The page would lack the recorded traces: {left_out}.")
    for scenario in scenarios(options.seeds, recorded):
        found.append(play(scenario, engine))
        print(f"\n## {scenario.name}\n\n{table(found[-1].means)}\n\n{frontier(found[-1])}")
    judged = goals(found)
    if options.write:
        DOCS.mkdir(parents=True, exist_ok=True)
        text = page.page(
            sections=[
                (each.scenario.name, each.scenario.promise, each.means, frontier(each))
                for each in found
            ],
            goals=judged,
            engine=engine,
            command=_command(options),
            minutes=(time.monotonic() - began) / 60,
            seeds=len(options.seeds),
            machine=report.machine_in_words(),
        )
        (DOCS / "backtest.md").write_text(text)
        plot.draw([each.plotted for each in found], DOCS / "backtest.svg")
    figures = {each.scenario.name: as_json(each.means) for each in found}
    report.finish("backtest", figures, judged)
    if left_out:
        print(f"The recorded traces were left out: {left_out}.", file=sys.stderr)


def _recorded() -> tuple[list[Path], str]:
    """Mooncake's trace and Azure's; or none, and why."""
    wanted = (public_data.CONVERSATION_TRACE, public_data.AZURE_TRACE)
    try:
        return [public_data.find(name) for name in wanted], ""
    except Problem as error:
        return [], str(error)


def _command(options: argparse.Namespace) -> str:
    """What makes this very page."""
    seeds = " ".join(map(str, options.seeds))
    return f'make bench-backtest ARGS="--seeds {seeds} --write"'


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.backtest.run", description=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=(1, 2, 3), metavar="N")
    parser.add_argument("--calibration", type=Path, default=engine_profile.SHIPPED)
    parser.add_argument("--write", action="store_true", help="docs/benchmarks/backtest.{md,svg}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
