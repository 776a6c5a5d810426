"""Measure what a warm replica is worth: make bench-spike

The same spike comes to two fleets of real engines. One has a second, warm replica; the other starts
its second replica on demand. One replica is enough before the spike, and too little during it.
Results are times to first token, the time until the second replica's first token, and the cost of
the warm one.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.harness.fleets.fleet import BenchFleet, running_as
from benchmarks.harness.load.trace_player import ReplayedRequest, Sizes, play, poisson
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from cli.gateway import stream_client
from common.percentiles import Tail, percentile
from simulator.traces import Request, Trace

FLEET = Path(__file__).with_name("fleet.yaml")
# Tokens of prompts and of answers.
SIZES: Sizes = ((50, 400), (8, 32))
# Shares of what one engine can serve. The spike begins with a burst.
BEFORE, BURST, SPIKE, AFTER = 0.15, 4.0, 1.4, 0.15
BEGINS_S, BURST_S, ENDS_S, SECONDS = 30.0, 6.0, 90.0, 150.0
SINGLES, CALM_S = 12, 600.0
WITH, WITHOUT = "with a warm replica", "without"


@dataclass(frozen=True)
class SpikeRun:
    """`first_token_s`: seconds from the start of the spike to the second replica's first token, if
    there was one. `promotion_s`: the gateway's measurement, from the request that needed it."""

    outcomes: tuple[ReplayedRequest, ...]
    first_token_s: float | None
    promotion_s: float | None
    idle_replica_s: float

    def attainment(self, slo_s: float) -> float:
        """The share of the spike's requests that met the SLO."""
        spike = [o for o in self.outcomes if BEGINS_S <= o.at < ENDS_S]
        return sum(outcome.met(slo_s) for outcome in spike) / len(spike)


async def measure(fleet: BenchFleet, rate: float | None) -> tuple[float, SpikeRun]:
    """The requests a second of one engine, measured where `rate` is None, and the run."""
    async with stream_client.session() as http:
        if rate is None:
            rate = await _one_by_one(http, fleet)
        warm_up = poisson("warm-up", lambda at: BEFORE * rate, BEFORE * rate, 20.0, SIZES, seed=2)
        await play(http, fleet.gateway, fleet.model, warm_up)
        async with asyncio.timeout(CALM_S):
            while _serving(fleet) > 1:  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(1.0)
        before = _metrics(fleet)
        outcomes = await play(http, fleet.gateway, fleet.model, spike(rate))
    after = _metrics(fleet)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    promotions = grown.get("antefix_warm_promotion_first_token_seconds_count", 0.0)
    total_s = grown.get("antefix_warm_promotion_first_token_seconds_sum", 0.0)
    return rate, SpikeRun(
        tuple(outcomes),
        _second_replica(outcomes),
        total_s / promotions if promotions else None,
        grown.get("antefix_warm_idle_replica_seconds_total", 0.0),
    )


def spike(rate: float) -> Trace:
    """The same each time. `rate`: requests a second that one engine can serve."""

    def of(at: float) -> float:
        if at < BEGINS_S:
            return BEFORE * rate
        if at < BEGINS_S + BURST_S:
            return BURST * rate
        return (SPIKE if at < ENDS_S else AFTER) * rate

    return poisson("spike", of, BURST * rate, SECONDS, SIZES, seed=1)


async def _one_by_one(http: aiohttp.ClientSession, fleet: BenchFleet) -> float:
    """Requests a second that one engine can prefill, from prompts of the mean length. No other
    traffic runs meanwhile, since the autoscaler would see load."""
    request = Request(0.0, sum(SIZES[0]) // 2, sum(SIZES[1]) // 2)
    one, ttfts = Trace("one", (request,), 0.0), []
    for _ in range(SINGLES):
        (outcome,) = await play(http, fleet.gateway, fleet.model, one)
        if outcome.ttft is None:
            raise RuntimeError(f"a request failed: {outcome}")
        ttfts.append(outcome.ttft)
    return 1.0 / statistics.median(ttfts)


def _serving(fleet: BenchFleet) -> int:
    """How many replicas take traffic."""
    return sum(one["role"] == "active" for one in fleet.pools()["engine"]["replicas"])


def _second_replica(outcomes: Sequence[ReplayedRequest]) -> float | None:
    served = [o for o in outcomes if o.ttft is not None]
    first = {outcome.replica for outcome in served if outcome.at < BEGINS_S}
    tokens_at = [o.at + o.ttft for o in served if o.ttft and o.replica not in first]
    return min(tokens_at) - BEGINS_S if tokens_at else None


def _metrics(fleet: BenchFleet) -> dict[str, float]:
    return {sample.name: sample.value for sample in fleet.metrics() if "le" not in sample.labels}


def figures_of(run: SpikeRun, slo_s: float) -> dict[str, Any]:
    ttfts = [outcome.ttft for outcome in run.outcomes if outcome.ttft is not None]
    tail = Tail.of(ttfts)
    return {
        "requests": len(run.outcomes),
        "refused": sum(outcome.status == 429 for outcome in run.outcomes),
        "slo_held_in_the_spike": round(run.attainment(slo_s), 4),
        "ttft_p50_s": round(percentile(ttfts, 50), 3),
        f"ttft_{tail.name}_s": round(tail.value, 3),
        "second_replica_first_token_s": run.first_token_s and round(run.first_token_s, 3),
        "promotion_first_token_s": run.promotion_s and round(run.promotion_s, 3),
        "warm_idle_replica_s": round(run.idle_replica_s, 1),
    }


def main() -> None:
    parser_of("spike.run", __doc__).parse_args()
    description: dict[str, Any] = yaml.safe_load(FLEET.read_text())
    pool = description["pools"]["engine"]
    slo_s = float(pool["slo"]["interactive"]["ttft_s"])
    with running_as(description) as fleet:
        rate, with_warm = asyncio.run(measure(fleet, None))
    pool["warm_replicas"] = 0
    with running_as(description) as fleet:
        _, without = asyncio.run(measure(fleet, rate))
    runs = {WITH: with_warm, WITHOUT: without}
    figures = {name: figures_of(run, slo_s) for name, run in runs.items()}
    goals = {
        "slo_held_in_the_spike_with_a_warm_replica_over_without": report.goal(
            with_warm.attainment(slo_s) / max(without.attainment(slo_s), 0.01), at_least=1.0
        )
    }
    told = {"requests_per_s_of_one_engine": round(rate, 3), **figures}
    report.finish("spike", told, goals, seeds=[1, 2])


if __name__ == "__main__":
    main()
