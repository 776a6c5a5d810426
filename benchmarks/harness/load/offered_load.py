"""Open-loop load on two real engines with an SLO of the first token.

First the rates of a sweep, up to the knee of the fleet's capacity, then phases of one rate. The
rule of `overload` has the rates and times.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.harness.fleets.fleet import BenchFleet
from benchmarks.harness.load.trace_player import ReplayedRequest, Sizes, play, poisson
from benchmarks.harness.results import rules
from common.errors import Problem
from simulator.traces import Request, Trace

FLEET = Path(__file__).with_suffix(".yaml")
# Tokens of prompts and of answers.
SIZES: Sizes = ((50, 300), (16, 16))
RULE = rules.of("overload")
FIRST_RATE: float = RULE.settings["first"]
STEP: float = RULE.settings["step"]
STEPS: int = RULE.settings["steps"]
STEP_S: float = RULE.settings["step_s"]
KNEE_SHARE: float = RULE.settings["knee_share"]
PHASE_S: float = RULE.settings["phase_s"]
PROBE_PERIOD_S, PROBES_S, SETTLE_S = 1.0, 15.0, 5.0
PROBE = sum(SIZES[0]) // 2, sum(SIZES[1]) // 2


@dataclass(frozen=True)
class Phase:
    """The outcome of `offered` requests a second. The fleet recovered in `recovered_s`."""

    offered: float
    outcomes: tuple[ReplayedRequest, ...]
    recovered_s: float

    def goodput(self, slo_s: float) -> float:
        """Requests a second that met the SLO."""
        return sum(outcome.met(slo_s) for outcome in self.outcomes) / PHASE_S

    def attained(self, slo_s: float) -> float:
        """The share of offered requests that met the SLO."""
        return sum(outcome.met(slo_s) for outcome in self.outcomes) / max(1, len(self.outcomes))

    @property
    def ttfts(self) -> list[float]:
        return sorted(outcome.ttft for outcome in self.outcomes if outcome.ttft is not None)


def steady(name: str, rate: float, seconds: float, seed: int) -> Trace:
    return poisson(name, lambda at: rate, rate, seconds, SIZES, seed)


class OverloadBench:
    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet, slo_s: float) -> None:
        self._http = http
        self._fleet = fleet
        self._slo_s = slo_s

    async def knee(self, seed: int) -> float:
        """The requests a second of the last rate before the first at which less than KNEE_SHARE of
        the requests meet the SLO. The first rate has a second try. Raises Problem without a knee.
        """
        knee = 0.0
        for rate in (FIRST_RATE * STEP**number for number in range(STEPS)):
            attained = await self._attained(rate, seed)
            if not knee and attained < KNEE_SHARE:
                attained = await self._attained(rate, seed)
            if attained < KNEE_SHARE:
                if knee:
                    return knee
                raise Problem(
                    f"the sweep has no knee: of its first rate, {rate:g}/s, only {attained:.1%}"
                    " met the SLO",
                    "end other processes on these cores, or lower `first` in benchmarks/goals.yaml",
                )
            knee = rate
        raise Problem(
            f"the sweep has no knee: of its last rate, {knee:g}/s, {attained:.1%} met the SLO",
            "raise `steps` in benchmarks/goals.yaml",
        )

    async def _attained(self, rate: float, seed: int) -> float:
        """The share of the requests at this rate that meet the SLO."""
        outcomes = await self._play(steady("step", rate, STEP_S, seed))
        attained = sum(of.met(self._slo_s) for of in outcomes) / max(1, len(outcomes))
        statuses = dict(Counter(of.status for of in outcomes))
        print(
            f"seed {seed}: offered {rate:.2f}/s, {attained:.1%} met the SLO, {statuses}", flush=True
        )
        if failed := [of for of in outcomes if not of.is_fair]:
            print(f"{len(failed)} failed, the first with {failed[0]}", file=sys.stderr)
        await asyncio.sleep(SETTLE_S)
        return attained

    async def phase(self, rate: float, seed: int) -> Phase:
        playing = asyncio.create_task(self._play(steady("offered", rate, PHASE_S, seed)))
        await asyncio.sleep(PHASE_S)
        recovered_s = await self._recovered()
        return Phase(rate, tuple(await playing), recovered_s)

    async def _recovered(self) -> float:
        """Seconds until a request met the SLO, and all after it."""
        count = int(PROBES_S / PROBE_PERIOD_S)
        probes = tuple(Request(i * PROBE_PERIOD_S, *PROBE) for i in range(count))
        outcomes = await self._play(Trace("probes", probes, PROBES_S))
        failed = [o.at + PROBE_PERIOD_S for o in outcomes if not o.met(self._slo_s)]
        return max(failed, default=0.0)

    async def _play(self, trace: Trace) -> list[ReplayedRequest]:
        return await play(self._http, self._fleet.gateway, self._fleet.model, trace)
