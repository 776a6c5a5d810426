"""The ways from a gateway to an engine, measured: make bench-transports

    handles             Ray Serve's proxy, gateway and engine joined by streaming handles
    handles-optimized   the same with RAY_SERVE_THROUGHPUT_OPTIMIZED=1
    haproxy-handles     HAProxy instead of the proxy, and the same switch
    straight            ours: the gateway's own server, HTTP to the replica

Each way has the same real engine, started anew, and is compared with that engine called
directly, interleaved. Beside times it counts the CPU that everything but vLLM's own processes
uses for a token: what is left when the engine, not the way to it, is the bottleneck.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks import report
from benchmarks.ending import stopped_in_the_end

MARK = "TRANSPORT "
WAYS: dict[str, dict[str, str]] = {
    "handles": {},
    "handles-optimized": {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"},
    "haproxy-handles": {
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
    },
    "straight": {},
}
WAY_SECONDS = 420


async def measure_in_turn() -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for way, switches in WAYS.items():
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.transports.way",
            way,
            env={**os.environ, "RAY_worker_niceness": "0", **switches},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        output, _ = await asyncio.wait_for(process.communicate(), WAY_SECONDS)
        lines = [line for line in output.decode().splitlines() if line.startswith(MARK)]
        if not lines:
            raise RuntimeError(
                f"{way} did not finish; run python -m benchmarks.transports.way {way}"
            )
        figures[way] = json.loads(lines[0].removeprefix(MARK))
        print(f"{way}: {figures[way]}", flush=True)
    return figures


@stopped_in_the_end()
def main() -> None:
    figures = asyncio.run(measure_in_turn())
    chosen = figures["straight"]
    others = [figures[way]["cpu_ms_per_token"] for way in WAYS if way != "straight"]
    goals = {
        "cpu_ms_per_token_against_best_other": report.goal(
            chosen["cpu_ms_per_token"] / min(others), at_most=1.0
        )
    }
    report.finish("transports", figures, goals, seeds=[])


if __name__ == "__main__":
    main()
