"""Watch a fleet under mixed traffic for growth: make soak ARGS="--minutes 60"

Two gateways and two real engines serve the same cycle of 20 seconds again and again
(`benchmarks.soak.traffic`). Every few minutes an engine is killed, and Ray Serve starts another.
`benchmarks.soak.watch` samples all that could leak. A warm-up does not count, in which caches fill
and explanations reach the age at which Redis expires them. Afterwards no slope may have a 95 %
interval above its bound (`benchmarks.soak.verdict`). At the end, without traffic, nothing may be
held for a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import redis

from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.fleets.fleet_state import held_for_requests
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from benchmarks.soak.gateways import held_by_gateways
from benchmarks.soak.slopes import FEWEST_CYCLES
from benchmarks.soak.traffic import MixedTraffic
from benchmarks.soak.verdict import (
    BOUNDS_PER_HOUR,
    growing,
    least_found,
    left_over,
    watched,
)
from benchmarks.soak.watch import FleetWatch, Sample
from cli.gateway import stream_client
from cli.local.home import Home

FLEET = Path(__file__).with_name("fleet.yaml")
Held = Callable[[], Mapping[str, int]]
LAYERS = 2
CYCLE_S, PERIOD_S = 20.0, 4.0
# Explanations are kept for up to three minutes.
WARM_UP_CYCLES = 9
WARM_UP_SHARE = 0.3
ASKERS, BURST = 4, 16
KILL_EVERY = 20
FIRST_REQUESTS = 30
# By then budgets' leases lapse, dead slots are swept and engines start again.
DRAIN_S = 180.0
IDLE_S = 5.0


class Soak:
    """The soak test of one fleet. `samples`: (seconds, sample) pairs during the traffic."""

    def __init__(self, fleet: BenchFleet, http: aiohttp.ClientSession, held: Held) -> None:
        home = Home(fleet.home)
        state = home.state()
        assert state is not None
        self._fleet = fleet
        self._keys_file = home.keys_file
        self.client = redis.Redis.from_url(state.redis_url)
        self.watch = FleetWatch(state.run_id, self.client, fleet.metrics_url, held)
        self.traffic = MixedTraffic(
            http, fleet.gateway.url, fleet.model, home.keys().api_key, self._write_keys
        )
        self.samples: list[tuple[float, Sample]] = []
        self.kills = self.missed = 0
        self._began = 0.0

    async def prepare(self) -> Sample:
        """The sample of an idle fleet that has served before."""
        for _ in range(FIRST_REQUESTS):
            await self.traffic.ask()
        self.traffic.told.clear()
        await self.drained()
        return await asyncio.to_thread(self.watch.sample)

    async def play(self, cycles: int) -> None:
        self._began = asyncio.get_running_loop().time()
        sampling = asyncio.create_task(self._sample())
        try:
            for cycle in range(cycles):
                self.traffic.change_keys()
                if cycle % KILL_EVERY == 1:
                    self._kill_an_engine()
                until = (cycle + 1) * CYCLE_S
                askers = (self._ask_until(until) for _ in range(ASKERS))
                await asyncio.gather(*askers, self._burst_at(until - CYCLE_S / 2))
                print(f"cycle {cycle + 1} of {cycles}: {dict(self.traffic.told)}", flush=True)
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    async def drained(self) -> dict[str, int]:
        """Wait until Redis and the engines hold nothing for requests. What they still hold."""
        until = asyncio.get_running_loop().time() + DRAIN_S
        while True:
            await asyncio.sleep(IDLE_S)
            pools = await asyncio.to_thread(self._fleet.pools)
            held = await asyncio.to_thread(held_for_requests, pools, self.client)
            if not any(held.values()) or asyncio.get_running_loop().time() > until:
                return held

    async def _ask_until(self, until: float) -> None:
        while self._now() < until:
            await self.traffic.ask()

    async def _burst_at(self, at: float) -> None:
        await asyncio.sleep(at - self._now())
        await self.traffic.burst(BURST)

    def _kill_an_engine(self) -> None:
        """The youngest, so that the others are watched throughout."""
        if engines := self.watch.engines():
            max(engines, key=psutil.Process.create_time).kill()
            self.kills += 1

    async def _sample(self) -> None:
        while True:
            try:
                self.samples.append((self._now(), await asyncio.to_thread(self.watch.sample)))
            except (OSError, redis.RedisError) as error:
                self.missed += 1
                print(f"a sample is missing: {error!r}", flush=True)
            await asyncio.sleep(PERIOD_S)

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _write_keys(self, keys: dict[str, str]) -> None:
        new = self._keys_file.with_name("api-keys.new")
        new.write_text("".join(f"{tenant}={key}\n" for key, tenant in keys.items()))
        new.replace(self._keys_file)


def warm_up(cycles: int) -> int:
    """The number of cycles that do not count."""
    return max(WARM_UP_CYCLES, int(WARM_UP_SHARE * cycles))


async def measure(
    fleet: BenchFleet, cycles: int, held_now: Held
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and goals. `held_now` returns what the gateways hold."""
    async with stream_client.session() as http:
        soak = Soak(fleet, http, held_now)
        before = await soak.prepare()
        await soak.play(cycles)
        held = await soak.drained()
        after = await asyncio.to_thread(soak.watch.sample)
    found = watched(soak.samples, CYCLE_S, warm_up(cycles) * CYCLE_S)
    for one in found:
        print(one.row())
    grown, left, told = growing(found), left_over(before, after, held), soak.traffic.told
    counted_s = (cycles - warm_up(cycles)) * CYCLE_S
    figures = {
        "minutes": round(cycles * CYCLE_S / 60, 1),
        "cycles_that_count": cycles - warm_up(cycles),
        "answers": {str(status): count for status, count in sorted(told.items(), key=str)},
        "requests_per_s": round(told.total() / (cycles * CYCLE_S), 2),
        "engines_killed": soak.kills,
        "samples_missed": soak.missed,
        "watched": dict(Counter(one.figure.unit for one in found)),
        "growing": {
            unit: [o.told() for o in grown if o.figure.unit == unit] for unit in BOUNDS_PER_HOUR
        },
        "filling": [o.figure.unit + " of " + o.figure.whose for o in found if o.verdict == "fills"],
        "least_found_an_hour": {
            unit: round(least_found(unit, counted_s), 1) for unit in BOUNDS_PER_HOUR
        },
    }
    counts = {
        **{
            f"{unit}_that_grow_by_{bound:g}_an_hour": sum(one.figure.unit == unit for one in grown)
            for unit, bound in BOUNDS_PER_HOUR.items()
        },
        **{f"left_over_{what}": count for what, count in left.items()},
        "requests_that_hang": told["hung"],
        "internal_errors": told[500],
    }
    return figures, {name: report.goal(count, at_most=0) for name, count in counts.items()}


def main() -> None:
    parser = parser_of("soak.run", __doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="of traffic")
    cycles = round(parser.parse_args().minutes * 60 / CYCLE_S)
    if cycles - warm_up(cycles) < FEWEST_CYCLES:
        least = (WARM_UP_CYCLES + FEWEST_CYCLES) * CYCLE_S / 60
        parser.error(f"--minutes is too short to prove a slope: give at least {least:g}")
    with (
        running_as(with_small_model(FLEET, LAYERS)) as fleet,
        held_by_gateways(Home(fleet.home)) as held,
    ):
        figures, goals = asyncio.run(measure(fleet, cycles, held))
    report.finish("soak", figures, goals, seeds=[1])


if __name__ == "__main__":
    main()
