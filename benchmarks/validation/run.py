"""Is the simulator true? make bench-simulator ARGS="--write"

The same arrivals, prompts and answers go to a fleet of two real engines, which are measured before
and after, and to its simulation: through the same admission and placement, at three loads. Times to
first token and refusals side by side, with the error.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from autoscaling.slo import Slo
from benchmarks import report
from benchmarks.fleet import BenchFleet, running
from benchmarks.trace_player import play, poisson
from cli import calibrating, stream_client
from cli.stream_client import Endpoint
from common.percentiles import percentile
from simulator.engine_profile import EngineProfile
from simulator.engines import Hardware
from simulator.simulation import run
from simulator.traces import Trace
from simulator.types import FleetSettings

FLEET = Path(__file__).with_name("fleet.yaml")
DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
REPLICAS, SLO_S = 2, 5.0
# Of what the profile says that the engines can do.
LOADS, PHASE_S = (0.4, 0.8, 2.0), 60.0
PROMPT_TOKENS, ANSWER_TOKENS = (50, 400), (8, 40)
PERCENTS = (50, 90, 99)
# A simulator that is off by more would say little about a policy.
ERROR_GOAL = 0.10


@dataclass(frozen=True)
class LoadResult:
    """What came of one load, in reality or in the simulation. `ttfts` are sorted, in seconds."""

    ttfts: tuple[float, ...]
    refused: int

    @property
    def mean(self) -> float:
        return sum(self.ttfts) / max(1, len(self.ttfts))

    def at(self, percent: float) -> float:
        return percentile(self.ttfts, percent)


@dataclass(frozen=True)
class MeasuredEngines:
    """In the mean over the fleet's engines: what one does while the others rest, and while all
    work. Each has a core, but caches and memory are of all."""

    alone: EngineProfile
    together: EngineProfile

    def at(self, load: float) -> EngineProfile:
        """At a load the others are at work for that share of the time."""
        alone, together, busy = self.alone.hardware, self.together.hardware, min(1.0, load)

        def mixed(rested: float, worked: float) -> float:
            return (1.0 - busy) * rested + busy * worked

        hardware = replace(
            together,
            prefill_rate=1.0 / mixed(1.0 / alone.prefill_rate, 1.0 / together.prefill_rate),
            step_s=mixed(alone.step_s, together.step_s),
            sequence_s=mixed(alone.sequence_s, together.sequence_s),
        )
        return msgspec.structs.replace(self.together, hardware=hardware)


def trace(engine: EngineProfile, load: float, seed: int) -> Trace:
    """Poisson arrivals that take `load` of the engines' time, if nobody waits in vain."""
    of = engine.hardware
    work_s = sum(PROMPT_TOKENS) / 2 / of.prefill_rate + of.step_s
    work_s += sum(ANSWER_TOKENS) / 2 * of.sequence_s
    rate = load * REPLICAS / work_s
    sizes = PROMPT_TOKENS, ANSWER_TOKENS
    return poisson(f"load {load:g}", lambda at: rate, rate, PHASE_S, sizes, seed)


def simulated(played: Trace, engine: EngineProfile) -> LoadResult:
    settings = FleetSettings(engine.hardware, engine.startup_s, Slo(SLO_S), REPLICAS, REPLICAS)
    calls = run(played, settings, f"fixed:{REPLICAS}").calls
    served = [call.ttft for call in calls if call.first_at is not None]
    return LoadResult(tuple(sorted(served)), len(calls) - len(served))


async def observed(http: aiohttp.ClientSession, fleet: BenchFleet, played: Trace) -> LoadResult:
    """Raises RuntimeError for an answer that is neither a success nor a refusal."""
    outcomes = await play(http, fleet.gateway, fleet.model, played)
    if unfair := [outcome for outcome in outcomes if not outcome.is_fair]:
        raise RuntimeError(f"{len(unfair)} requests failed, the first with {unfair[0]}")
    ttfts = sorted(outcome.ttft for outcome in outcomes if outcome.ttft is not None)
    return LoadResult(tuple(ttfts), len(outcomes) - len(ttfts))


async def measured(http: aiohttp.ClientSession, fleet: BenchFleet) -> MeasuredEngines:
    """Raises aiohttp.ClientError."""
    url = f"{fleet.gateway.url}/antefix/status"
    async with http.get(url, headers=fleet.gateway.headers) as answer:
        [pool] = (await answer.json())["pools"].values()
    urls = [replica["url"] for replica in pool["replicas"]]
    engines = [Endpoint("direct", url, fleet.passes.headers(url)) for url in urls]
    measure = partial(calibrating.calibrated, http, model=fleet.model)
    alone = [await measure(engine=engine) for engine in engines]
    together = await asyncio.gather(*(measure(engine=engine) for engine in engines))
    return MeasuredEngines(mean_of(alone), mean_of(together))


def mean_of(profiles: Sequence[EngineProfile]) -> EngineProfile:
    each = [of.hardware for of in profiles]
    mean = replace(
        each[0],
        prefill_rate=statistics.fmean(of.prefill_rate for of in each),
        step_s=statistics.fmean(of.step_s for of in each),
        sequence_s=statistics.fmean(of.sequence_s for of in each),
    )
    return msgspec.structs.replace(profiles[0], hardware=mean)


async def measure(
    fleet: BenchFleet,
) -> tuple[MeasuredEngines, dict[str, tuple[LoadResult, LoadResult]]]:
    """By load: what was observed, and what the simulation of the same said."""
    async with stream_client.session() as http:
        before = await measured(http, fleet)
        # the gateway learns its predictions, as it has where it has run for a while
        await observed(http, fleet, trace(before.together, LOADS[1], seed=0))
        seen = {}
        for load in LOADS:
            played = trace(before.together, load, seed=1)
            seen[load] = played, await observed(http, fleet, played)
        after = await measured(http, fleet)
    engines = MeasuredEngines(
        mean_of([before.alone, after.alone]), mean_of([before.together, after.together])
    )
    print(f"alone {engines.alone.hardware}, together {engines.together.hardware}")
    found = {}
    for load, (played, outcome) in seen.items():
        found[played.name] = outcome, simulated(played, engines.at(load))
        told = map(described, found[played.name])
        print(f"{played.name}: observed {next(told)}; simulated {next(told)}")
    return engines, found


def described(seen: LoadResult) -> str:
    figures = " ".join(f"{seen.at(percent):.2f}" for percent in PERCENTS)
    return f"{len(seen.ttfts)} served, {seen.refused} refused, mean {seen.mean:.2f} s, {figures}"


def error(observed: float, simulated: float) -> float:
    return abs(simulated - observed) / observed


def summary(
    found: dict[str, tuple[LoadResult, LoadResult]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals."""
    figures: dict[str, Any] = {}
    for load, (seen, said) in found.items():
        figures[load] = {
            name: {
                "served": len(of.ttfts),
                "refused": of.refused,
                "ttft_mean_s": round(of.mean, 3),
                **{f"ttft_p{percent}_s": round(of.at(percent), 3) for percent in PERCENTS},
            }
            for name, of in (("observed", seen), ("simulated", said))
        }
    goals = {
        f"error_of_mean_ttft_at_{load.replace(' ', '_')}": report.goal(
            error(seen.mean, said.mean), at_most=ERROR_GOAL
        )
        for load, (seen, said) in found.items()
    }
    return figures, goals


def page(figures: dict[str, Any], goals: dict[str, Any], engines: MeasuredEngines) -> str:
    """docs/benchmarks/simulator.md."""
    rows = [
        f"| {load} | {who} | {of['served']} | {of['refused']} | {of['ttft_mean_s']:.2f} s | "
        + " | ".join(f"{of[f'ttft_p{percent}_s']:.2f} s" for percent in PERCENTS)
        + " |"
        for load, both in figures.items()
        for who, of in both.items()
    ]
    errors = [f"- {name.replace('_', ' ')}: {goal['figure']:.0%}" for name, goal in goals.items()]
    alone, together = engines.alone.hardware, engines.together.hardware
    (least, most), (shortest, longest) = PROMPT_TOKENS, ANSWER_TOKENS
    return f"""# Is the simulator true?

<!-- Written by `{report.command("simulator")}`. -->

Two real engines with a core each, and their simulation from what `antefix calibrate` measures, in
the mean over both, before all loads and after:

| | Prompt tokens a second | Decode step | More for each sequence in it |
| -- | -- | -- | -- |
{_measured_row("while the other rests", alone)}
{_measured_row("while both work", together)}

The engines of a machine share its caches and memory. At a load the other is at work for that share
of the time, and what the simulation takes for an engine's times is that much between the two. The
same arrivals, prompts of {least} to {most} tokens and answers of {shortest} to {longest}, go
through the same placement and admission (SLO {SLO_S:g} s), for {PHASE_S:g} s a load. A load is the
share of the engines' time that the requests would take if both worked all the time.

| Load | | Served | Refused | Mean TTFT | p50 | p90 | p99 |
| -- | -- | -- | -- | -- | -- | -- | -- |
{chr(10).join(rows)}

Relative errors of the simulation:

{chr(10).join(errors)}

{report.machine_in_words()}
"""


def _measured_row(when: str, of: Hardware) -> str:
    step_ms, sequence_ms = 1000 * of.step_s, 1000 * of.sequence_s
    return f"| {when} | {of.prefill_rate:.0f} | {step_ms:.1f} ms | {sequence_ms:.1f} ms |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="docs/benchmarks/simulator.md")
    write = parser.parse_args().write
    with running(FLEET) as fleet:
        engines, found = asyncio.run(measure(fleet))
    figures, goals = summary(found)
    if write:
        (DOCS / "simulator.md").write_text(page(figures, goals, engines))
    report.finish("simulator", figures, goals, seeds=[1])


if __name__ == "__main__":
    main()
