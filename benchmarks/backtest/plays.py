"""Plays of scenarios under policies, on all cores, kept in a file as they end.

So an interrupted backtest resumes. The file belongs to one commit and one engine, since a play of
another commit or engine may have another result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.backtest.scenarios import RULE, as_played, policies, scenario
from benchmarks.stand.kept_parts import KeptParts, all_found
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, summary
from simulator.simulation import run


@dataclass(frozen=True)
class Play:
    scenario: str
    seed: int
    policy: str


Played = dict[Play, SimulationSummary]


def kept_plays(file: Path | None, engine: EngineProfile) -> KeptParts:
    """Raises Problem for a file of another commit, rule or engine."""
    return KeptParts(file, "backtest", RULE, engine=engine)


def wanted(scenarios: Sequence[tuple[str, int]]) -> list[Play]:
    return [Play(name, seed, policy) for name, seed in scenarios for policy in policies(name)]


def one(play: Play, engine: EngineProfile) -> SimulationSummary:
    of = scenario(play.scenario, play.seed)
    settings, policy = as_played(play.policy, of, engine)
    return summary(run(of.trace, settings, policy))


def play_all(
    plays: Sequence[Play],
    engine: EngineProfile,
    kept: KeptParts,
    tell: Callable[[Played, Play], None],
) -> Played:
    """`tell`: called after each play with all that are done."""
    return all_found(plays, partial(one, engine=engine), SimulationSummary, kept, tell)
