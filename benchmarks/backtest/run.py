"""Our autoscaler, Ray Serve's, HPA and KEDA on the same traces: make bench-backtest ARGS=--write

Every trace is played on simulated engines (simulator/simulation.py) under our policy, without warm
replicas, with one and with two; under Ray Serve's autoscaler, Kubernetes' HPA and KEDA, each with
several targets, with the usual routing and some with ours; on as many fixed replicas as there may
be; and with all of them asked for when more first begins to come. Synthetic ones are played for
several seeds; tables have the mean, goals count the worst. As many traces as there are cores are
played at a time. Where the recorded ones cannot be had the others are played alone, it says so in
the end, and writes no page.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoscaling.slo import Slo
from benchmarks import public_data, report
from benchmarks.backtest import page
from common.errors import Problem
from simulator import engine_profile, plot, traces
from simulator.engine_profile import EngineProfile
from simulator.results import (
    SimulationSummary,
    Total,
    as_json,
    best_within,
    mean,
    summary,
    table,
    totals,
)
from simulator.simulation import OVER_OURS, run
from simulator.traces import Trace
from simulator.types import FleetSettings, Result

OURS, SERVE, SERVE_OURS = "antefix", "serve-default", f"serve-default{OVER_OURS}"
WARM, WARM_2 = f"{OURS}, 1 warm", f"{OURS}, 2 warm"
# Who does not know the future asks no sooner.
ALL_AT = "all-at"
# Ray Serve's default is 2.
TARGETS = (1, 4, 8, 16, 32)
# vLLM's production stack has 5 in its example of KEDA; a replica of ours holds the SLO with some 10
# requests in it.
KUBERNETES = tuple(
    f"{kind}-{metric}:{target}"
    for kind in ("hpa", "keda")
    for metric, targets in (("waiting", (0.25, 1, 5)), ("concurrency", (4, 8, 16)))
    for target in targets
)
KUBERNETES_OURS = tuple(
    f"{policy}{OVER_OURS}"
    for policy in ("hpa-waiting:0.25", "hpa-concurrency:8", "hpa-concurrency:16")
)
# Where there is no beginning to what comes, the fleet has some size already.
FIRST = {"noise": 4}
# A peer published 95.8 % at this many replicas on average, of 8 at most, for 2-10-1 requests/s.
PEER_REPLICAS = 5.93
ATTAINMENT = {"ramp": 0.999, "cliff": 0.95, "bursts": 0.97}
# Of HPA's misses.
MISSES = 0.1
PLOTTED = (OURS, SERVE, "hpa-concurrency:8")
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"


@dataclass(frozen=True)
class Scenario:
    """A trace for each seed, on a pool of these bounds; SLO in seconds. `more_at`: of each trace,
    the second in which more begins to come than at first; 0 where that is not known."""

    name: str
    traces: Sequence[Trace]
    more_at: Sequence[int]
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
        more_at = [traces.rises_at(name, seed) for seed in seeds]
        yield Scenario(name, played, more_at, initial_replicas=FIRST.get(name, 2))
    if recorded:
        mooncake, azure = map(traces.read, recorded)
        # Mooncake's own SLO; its prompts are that long
        yield Scenario(
            "mooncake", [mooncake], [0], ttft_slo=30.0, max_replicas=16, initial_replicas=8
        )
        yield Scenario("azure x 2", [azure.scaled(2.0)], [0], initial_replicas=4)


def play(scenario: Scenario, engine: EngineProfile) -> ScenarioResult:
    fixed = f"fixed:{scenario.max_replicas}"
    policies = (
        OURS,
        WARM,
        WARM_2,
        SERVE,
        SERVE_OURS,
        *(f"{SERVE}:{target}" for target in TARGETS),
        *KUBERNETES,
        *KUBERNETES_OURS,
        ALL_AT,
        fixed,
    )
    summaries: dict[str, list[SimulationSummary]] = {policy: [] for policy in policies}
    plotted = []
    for seed, (trace, more_at) in enumerate(zip(scenario.traces, scenario.more_at, strict=True)):
        settings = scenario.settings(engine, seed)
        kept_warm = {
            WARM: replace(settings, warm_replicas=1),
            WARM_2: replace(settings, warm_replicas=2),
        }
        for policy in policies:
            if policy in kept_warm:
                result = run(trace, kept_warm[policy], OURS)
            else:
                result = run(trace, settings, f"{ALL_AT}:{more_at}" if policy == ALL_AT else policy)
            summaries[policy].append(summary(result))
            if seed == 0 and policy in PLOTTED:
                plotted.append(result)
    return ScenarioResult(scenario, summaries, plotted)


def goals(found: Sequence[ScenarioResult]) -> dict[str, Any]:
    by_name = {each.scenario.name: each.summaries for each in found}
    judged = {}
    for name, wanted in ATTAINMENT.items():
        if name not in by_name:
            continue
        for policy, words in ((OURS, ""), (WARM_2, "_with_2_warm")):
            worst = min(s.attainment for s in by_name[name][policy])
            judged[f"{name}_attainment{words}"] = report.goal(worst, at_least=wanted)
        most = min(s.attainment for s in by_name[name][ALL_AT])
        judged[f"{name}_attainment"]["without_foresight_at_most"] = round(most, 4)
    most = max(s.average_replicas for s in by_name["ramp"][OURS])
    judged["ramp_average_replicas"] = report.goal(most, at_most=PEER_REPLICAS)
    for each in found:
        name = each.scenario.name.replace(" ", "_")
        gained = min(ours.attainment - serve.attainment for ours, serve in each.pairs())
        hours = max(ours.replica_hours / serve.replica_hours for ours, serve in each.pairs())
        judged[f"{name}_attainment_above_serve_default"] = report.goal(gained, at_least=0.0)
        judged[f"{name}_replica_hours_of_serve_default"] = report.goal(hours, at_most=1.0)
    of = totals([each.means for each in found])
    for peers, name in ((KUBERNETES, "hpa"), (KUBERNETES_OURS, "hpa_under_our_routing")):
        best = of[fewest_misses(of, peers)]
        for policy, words in ((OURS, ""), (WARM_2, "_with_2_warm")):
            misses = of[policy].misses / max(1.0, best.misses)
            hours = of[policy].replica_hours / best.replica_hours
            judged[f"misses_of_{name}{words}"] = report.goal(misses, at_most=MISSES)
            judged[f"replica_hours_of_{name}{words}"] = report.goal(hours, at_most=1.0)
        least = of[ALL_AT].misses / max(1.0, best.misses)
        judged[f"misses_of_{name}"]["without_foresight_at_least"] = round(least, 4)
    return judged


def fewest_misses(of: Mapping[str, Total], policies: Sequence[str]) -> str:
    """The target that a tuner would choose, whatever it costs."""
    return min(policies, key=lambda policy: of[policy].misses)


def compared(of: Mapping[str, Total]) -> str:
    """In words: the best HPA over all traces, with the usual routing and with ours."""
    ours, sentences = of[OURS], []
    for peers, words in (
        (KUBERNETES, "with the usual routing and no admission"),
        (KUBERNETES_OURS, "under our routing and admission"),
    ):
        policy = fewest_misses(of, peers)
        best = of[policy]
        sentences.append(
            f"Of HPA's and KEDA's targets {words}, {policy} misses least over all traces:"
            f" {best.misses:,.0f} requests in {best.replica_hours:.1f} replica-hours, where ours"
            f" misses {ours.misses:,.0f} in {ours.replica_hours:.1f}."
        )
    return " ".join(sentences)


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
    with ProcessPoolExecutor() as cores:
        each = functools.partial(play, engine=engine)
        for result in cores.map(each, scenarios(options.seeds, recorded)):
            found.append(result)
            name = result.scenario.name
            print(f"\n## {name}\n\n{table(result.means)}\n\n{frontier(result)}", flush=True)
    of = totals([each.means for each in found])
    print(f"\n## All traces\n\n{page.totals_table(of)}\n\n{compared(of)}")
    judged = goals(found)
    if options.write:
        DOCS.mkdir(parents=True, exist_ok=True)
        text = page.page(
            sections=[
                (each.scenario.name, each.scenario.promise, each.means, frontier(each))
                for each in found
            ],
            goals=judged,
            totals=of,
            compared=compared(of),
            engine=engine,
            command=_command(options),
            minutes=(time.monotonic() - began) / 60,
            seeds=len(options.seeds),
            machine=report.machine_in_words(),
        )
        (DOCS / "backtest.md").write_text(text)
        plot.draw([each.plotted for each in found], DOCS / "backtest.svg")
    figures = {each.scenario.name: as_json(each.means) for each in found}
    figures["all"] = {policy: vars(total) for policy, total in of.items()}
    report.finish("backtest", figures, judged, seeds=options.seeds)
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
