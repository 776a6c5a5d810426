"""How soon an engine that is killed is back: make bench-cold-starts ARGS="--rounds 3"

Two pools of one real engine each, one of them with `prestart`. In turns the process of either's
engine is killed, and a client asks the pool until it gets a first token. Nothing else is asked for
meanwhile; the next is killed when all waits again.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.stand import report
from benchmarks.stand.drilled_fleet import DrilledFleet, engine_core_of, eventually
from benchmarks.stand.fleet import BenchFleet, running
from benchmarks.stand.options import add_write, parser_of
from cli import stream_client
from cli.stream_client import Endpoint

FLEET = Path(__file__).with_name("fleet.yaml")
PAGE = report.PAGES / "cold-starts.md"
ORDINARY, PRESTARTED = "ordinary", "prestarted"
# Who waits may still import; and so long nothing disturbs the next.
CALM_S = 20.0
PHASE = "antefix_replica_start_phase_seconds"
PHASES = ("import", "configure", "engine", "server")


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
    """Memory that no other process has a part in, its children's included."""
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
    """Seconds of each pool, and what else is told."""
    waiting_bytes, loads = [], []
    found: dict[str, list[float]] = {ORDINARY: [], PRESTARTED: []}
    async with stream_client.session() as http:
        drilled = DrilledFleet(fleet, http)

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


def page(found: Mapping[str, Sequence[float]], more: Mapping[str, Any], ratio: float) -> str:
    """docs/benchmarks/cold-starts.md."""
    rows = "\n".join(
        f"| {pool} | {', '.join(f'{one:.1f}' for one in found[pool])}"
        f" | {statistics.median(found[pool]):.1f}"
        + "".join(f" | {more['phases_s'][pool][phase]:.1f}" for phase in PHASES)
        + " |"
        for pool in found
    )
    least, most = more["load_average"]
    return f"""\
# How soon an engine is back

<!-- Written by `{report.command("cold-starts")}`. -->

Two pools of one real engine each, of the embedded model; `prestarted` has
[`prestart: true`](../architecture.md#how-an-engine-starts). In turns, and once all is calm, the
process of either's engine is killed (SIGKILL), and a client asks the pool until it gets a first
token. In seconds; the phases are those of the last start, and *engine* loads the weights:

| Pool | First token, each kill | median | import | configure | engine | server |
| -- | -- | -- | -- | -- | -- | -- |
{rows}

The ratio of the medians is {ratio:.2f}; the goal was 0.5. What is left is no import: some seconds
until Ray Serve has seen that the replica is gone and has begun the next, then weights, KV cache and
warm-up. The two processes in waiting had {more["waiting_mib"]} MiB of their own. The machine's load
average was {least} to {most} as the engines were killed: where it is above the number of cores,
other work took part of them, which a start with more to compute suffers more from.

{report.machine_in_words()}
"""


def main() -> None:
    parser = parser_of("cold_starts.run", __doc__)
    parser.add_argument("--rounds", type=int, default=3)
    add_write(parser, "cold-starts.md")
    options = parser.parse_args()
    with running(FLEET) as fleet:
        found, more = asyncio.run(measure(fleet, options.rounds))
    ratio = statistics.median(found[PRESTARTED]) / statistics.median(found[ORDINARY])
    if options.write:
        PAGE.write_text(page(found, more, ratio))
    figures = {
        f"{pool}_back_after_s": [round(one, 1) for one in seconds]
        for pool, seconds in found.items()
    }
    goals = {"prestarted_over_ordinary": report.goal(ratio, at_most=0.5)}
    report.finish("cold-starts", {**figures, **more}, goals, seeds=[])


if __name__ == "__main__":
    main()
