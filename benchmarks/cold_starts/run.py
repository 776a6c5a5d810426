"""Kill engines and time their replacements: make bench-cold-starts ARGS="--rounds 3"

There are two pools of one real engine each, one of them with `prestart`. In turns, the process of
one engine is killed, and a client asks its pool until it gets a first token. There is no other
traffic. The next kill waits until the fleet is idle and a process waits for the next engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.stand import report
from benchmarks.stand.drilled_fleet import DrilledFleet, engine_core_of, eventually
from benchmarks.stand.fleet import BenchFleet, running
from benchmarks.stand.options import parser_of
from cli import stream_client
from cli.stream_client import Endpoint

FLEET = Path(__file__).with_name("fleet.yaml")
ORDINARY, PRESTARTED = "ordinary", "prestarted"
# A waiting process may still import. Seconds until the next kill.
CALM_S = 20.0
PHASE = "antefix_replica_start_phase_seconds"


async def back_after(
    http: aiohttp.ClientSession, gateway: Endpoint, fleet: DrilledFleet, pool: str
) -> float:
    """Seconds from the kill of the pool's engine to the first token of its next."""
    loop = asyncio.get_running_loop()
    engine_core_of(fleet.replicas(pool)[0]).kill()
    killed = loop.time()
    while True:
        asked = loop.time()
        try:
            ttft = await stream_client.ttft(http, gateway, pool, "Once upon a time", 4)
        except (aiohttp.ClientError, RuntimeError):
            await asyncio.sleep(0.1)
        else:
            return asked + ttft - killed


def own_bytes(process: psutil.Process) -> int:
    """Memory that no other process shares, with that of its children."""
    family = [process, *process.children(recursive=True)]
    return sum(one.memory_full_info().uss for one in family)


def phases(fleet: BenchFleet) -> dict[str, dict[str, float]]:
    """Pool -> phase -> seconds, of the latest start."""
    found: dict[str, dict[str, float]] = {}
    for sample in fleet.metrics():
        if sample.name == PHASE:
            of = found.setdefault(sample.labels["pool"], {})
            of[sample.labels["phase"]] = round(sample.value, 2)
    return found


async def measure(fleet: BenchFleet, rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds until each pool was back, by pool, and other figures."""
    waiting_bytes, loads = [], []
    found: dict[str, list[float]] = {ORDINARY: [], PRESTARTED: []}
    async with stream_client.session() as http:
        drilled = DrilledFleet(fleet)

        async def one_waits() -> bool:
            return len(drilled.in_waiting()) == 1

        for pool in found:
            await stream_client.ttft(http, fleet.gateway, pool, "Once upon a time", 4)
        for _ in range(rounds):
            for pool in random.sample(list(found), len(found)):
                await eventually("one waits", one_waits)
                await asyncio.sleep(CALM_S)
                waiting_bytes += [own_bytes(process) for process in drilled.in_waiting()]
                loads.append(os.getloadavg()[0])
                found[pool].append(await back_after(http, fleet.gateway, drilled, pool))
                print(f"{pool}: {found[pool][-1]:.1f} s, of which {phases(fleet)}", flush=True)
    more = {
        "waiting_mib": max(waiting_bytes) >> 20,
        "load_average": [round(min(loads), 1), round(max(loads), 1)],
        "phases_s": phases(fleet),
    }
    return found, more


def main() -> None:
    parser = parser_of("cold_starts.run", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with running(FLEET) as fleet:
        found, more = asyncio.run(measure(fleet, options.rounds))
    ratio = statistics.median(found[PRESTARTED]) / statistics.median(found[ORDINARY])
    figures = {
        f"{pool}_back_after_s": [round(one, 1) for one in seconds]
        for pool, seconds in found.items()
    }
    goals = {"prestarted_over_ordinary": report.goal(ratio, at_most=0.5)}
    report.finish("cold-starts", {**figures, **more}, goals, seeds=[])


if __name__ == "__main__":
    main()
