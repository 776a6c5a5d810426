"""Plays of scenarios under policies, on all cores."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.backtest.results import ScenarioResult
from benchmarks.backtest.scenarios import Scenario, as_played, policies, scenario
from benchmarks.harness.results.kept_parts import KeptParts, all_found
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, summary
from simulator.simulation import run


@dataclass(frozen=True)
class Play:
    scenario: str
    seed: int
    policy: str


def played(of: Scenario, policy: str, engine: EngineProfile) -> SimulationSummary:
    return summary(run(of.trace, *as_played(policy, of, engine)))


def one(play: Play, engine: EngineProfile) -> SimulationSummary:
    return played(scenario(play.scenario, play.seed), play.policy, engine)


def play_all(
    scenarios: Sequence[tuple[str, int]], engine: EngineProfile, kept: KeptParts
) -> list[ScenarioResult]:
    """Each scenario under all of its policies, without those plays that are kept."""
    plays = [Play(name, seed, policy) for name, seed in scenarios for policy in policies(name)]

    def tell(done: dict[Play, SimulationSummary], last: Play) -> None:
        print(f"{len(done)} of {len(plays)} plays", end="\r", file=sys.stderr)

    summaries = all_found(plays, partial(one, engine=engine), SimulationSummary, kept, tell)
    found: dict[str, dict[str, list[SimulationSummary]]] = {}
    for play in plays:
        by_policy = found.setdefault(play.scenario, {})
        by_policy.setdefault(play.policy, []).append(summaries[play])
    return [ScenarioResult(name, by_policy) for name, by_policy in found.items()]
