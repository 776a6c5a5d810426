"""Plays of scenarios under policies, on all cores, and a file of those that are done.

A play is kept in the file as it ends, so an interrupted backtest resumes there. The file belongs to
one commit and one engine: a play of another commit or engine may have another result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.backtest.scenarios import as_played, policies, scenario
from benchmarks.stand.cores import all_cores
from common.errors import Problem
from simulator import engine_profile
from simulator.engine_profile import EngineProfile
from simulator.results import SimulationSummary, summary
from simulator.simulation import run


@dataclass(frozen=True)
class Play:
    scenario: str
    seed: int
    policy: str


Played = dict[Play, SimulationSummary]


class KeptPlays:
    """In `file`, or in memory without one. Raises Problem for a file of other code or engines."""

    def __init__(self, file: Path | None, commit: str | None, engine: EngineProfile) -> None:
        self._file = file
        self.played: Played = {}
        self._of = {"commit": commit, "engine": json.loads(engine_profile.to_json(engine))}
        if file is None:
            return
        if not file.exists():
            file.write_text(json.dumps(self._of) + "\n")
            return
        first, *lines = file.read_text().splitlines()
        if json.loads(first) != self._of:
            raise Problem(
                f"{file} has plays of another commit or engine", "give another file to --keep"
            )
        for line in lines:
            told = json.loads(line)
            self.played[Play(**told["play"])] = SimulationSummary(**told["summary"])

    def keep(self, play: Play, found: SimulationSummary) -> None:
        self.played[play] = found
        if self._file is not None:
            with self._file.open("a") as lines:
                lines.write(json.dumps({"play": asdict(play), "summary": asdict(found)}) + "\n")


def wanted(scenarios: Sequence[tuple[str, int]]) -> list[Play]:
    return [Play(name, seed, policy) for name, seed in scenarios for policy in policies(name)]


def one(play: Play, engine: EngineProfile) -> SimulationSummary:
    of = scenario(play.scenario, play.seed)
    settings, policy = as_played(play.policy, of, engine)
    return summary(run(of.trace, settings, policy))


def play_all(plays: Sequence[Play], engine: EngineProfile, kept: KeptPlays) -> Iterator[Play]:
    """Yield each play that was not kept yet, once it is; those that end first come first."""
    left = [play for play in plays if play not in kept.played]
    with all_cores() as cores:
        running = {cores.submit(one, play, engine): play for play in left}
        for ended in as_completed(running):
            kept.keep(running[ended], ended.result())
            yield running[ended]
