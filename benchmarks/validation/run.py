"""Compare the simulator with a real fleet: make bench-simulator

The same arrivals, prompts and answers go to two real engines and to their simulation, through the
same admission and placement. There are three loads, with each seed of goals.yaml. The engines are
measured before and after; one profile of them serves all loads, as in backtest and scale. Times to
first token and refusals are compared. An interrupted run resumes with --keep FILE, load by load.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp
import msgspec

from autoscaling.slo import Slo
from benchmarks.harness.fleets.fleet import BenchFleet, engine_urls, running
from benchmarks.harness.load import pace
from benchmarks.harness.load.trace_player import play, poisson
from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.kept_parts import KeptParts
from benchmarks.harness.results.options import add_keep, parser_of
from benchmarks.validation import results
from benchmarks.validation.results import PERCENTS, RULE, ComparedLoad, LoadResult
from cli.gateway import calibrating, stream_client
from cli.gateway.stream_client import Endpoint
from simulator.engine_profile import EngineProfile
from simulator.simulation import run
from simulator.traces import Trace
from simulator.types import FleetSettings

FLEET = Path(__file__).with_name("fleet.yaml")
REPLICAS, SLO_S = 2, 5.0
# Each load is a share of the engines' capacity according to the profile.
LOADS, PHASE_S = RULE.settings["loads"], RULE.settings["phase_s"]
PROMPT_TOKENS, ANSWER_TOKENS = (50, 400), (8, 40)


def trace(engine: EngineProfile, load: float, seed: int) -> Trace:
    """Poisson arrivals that take `load` of the engines' time, if no request waits in vain."""
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
    late = tuple(outcome.sent_late for outcome in outcomes if outcome.sent_late is not None)
    return LoadResult(tuple(ttfts), len(outcomes) - len(ttfts), late)


async def measured(http: aiohttp.ClientSession, fleet: BenchFleet) -> EngineProfile:
    """The mean over the fleet's engines, while all work. Raises Problem and aiohttp.ClientError."""
    urls = await asyncio.to_thread(engine_urls, fleet.pools, REPLICAS)
    engines = [Endpoint("direct", url, fleet.passes.headers(url)) for url in urls]
    measure = partial(calibrating.calibrated, http, model=fleet.model)
    return mean_of(await asyncio.gather(*(measure(engine=engine) for engine in engines)))


def mean_of(profiles: Sequence[EngineProfile]) -> EngineProfile:
    each = [of.hardware for of in profiles]
    mean = replace(
        each[0],
        prefill_rate=statistics.fmean(of.prefill_rate for of in each),
        step_s=statistics.fmean(of.step_s for of in each),
        sequence_s=statistics.fmean(of.sequence_s for of in each),
    )
    return msgspec.structs.replace(profiles[0], hardware=mean)


async def measure(fleet: BenchFleet, kept: KeptParts) -> tuple[EngineProfile, list[ComparedLoad]]:
    """What was observed with each seed at each load, and what the simulation of the same said. What
    is kept is not measured again; engines are measured anew at the end."""
    async with stream_client.session() as http:
        if (before := kept.get("engines", EngineProfile)) is None:
            before = await measured(http, fleet)
            kept.keep("engines", before)
        # the gateway learns its predictions, as it has where it has run for a while
        await observed(http, fleet, trace(before, LOADS[1], seed=0))
        seen = []
        for seed in RULE.reported:
            for load in LOADS:
                played = trace(before, load, seed)
                if (outcome := kept.get(f"{seed} {load:g}", LoadResult)) is None:
                    outcome = await observed(http, fleet, played)
                    kept.keep(f"{seed} {load:g}", outcome)
                    print(f"seed {seed} {played.name}: {described(outcome)}", flush=True)
                seen.append((load, seed, played, outcome))
        after = await measured(http, fleet)
    engine = mean_of([before, after])
    print(f"engines {engine.hardware}")
    return engine, [
        ComparedLoad(load, seed, outcome, simulated(played, engine))
        for load, seed, played, outcome in seen
    ]


def described(seen: LoadResult) -> str:
    p50, p90 = (seen.at(percent) for percent in PERCENTS[:2])
    return (
        f"{len(seen.ttfts)} served, {seen.refused} refused, mean {seen.mean:.2f} s,"
        f" p50 {p50:.2f}, p90 {p90:.2f}, {pace.figures(seen.sent_late)}"
    )


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("validation.run", __doc__)
    add_keep(parser)
    kept = KeptParts(parser.parse_args().keep, "simulator", RULE)
    with running(FLEET) as fleet:
        engine, found = asyncio.run(measure(fleet, kept))
    told, judged = results.figures(found), results.goals(found)
    sent = pace.figures(seconds for one in found for seconds in one.observed.sent_late)
    engines = msgspec.to_builtins(engine.hardware)
    report.finish("simulator", {**told, **sent, "engines": engines}, judged, seeds=RULE.reported)


if __name__ == "__main__":
    main()
