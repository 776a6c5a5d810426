"""The cost of the client, and whether it limited the measurement.

A client without enough CPU time sends and reads late, and both look like a slow server. A heartbeat
measures the delay of the event loop, and each request its own delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.player import SentRequest
from loadgen.summary import distribution, late_s, tail_of, ttft_s

BEAT_S = 0.02
# Share of one core, which is all that the loop has.
MOST_CPU = 0.7
# A delay of this much, or of this share of the median TTFT if that is more, matters.
MOST_LATE_S, MOST_LATE_OF_TTFT = 0.005, 0.05


@dataclass
class ClientWatch:
    """`cpu_s`: of this process and all its threads; `lags_s`: the delay of each heartbeat."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    lags_s: array[float] = field(default_factory=lambda: array("d"))


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[ClientWatch]:
    """Yield a watch that is complete when the block has ended."""
    watch = ClientWatch()
    beating = asyncio.create_task(_beat(watch.lags_s))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    try:
        yield watch
    finally:
        watch.wall_s = time.perf_counter() - began_s
        watch.cpu_s = time.process_time() - began_cpu_s
        beating.cancel()
        await asyncio.wait([beating])


async def _beat(lags_s: array[float]) -> None:
    while True:
        due_s = time.perf_counter() + BEAT_S
        await asyncio.sleep(BEAT_S)
        lags_s.append(max(0.0, time.perf_counter() - due_s))


def cost(watch: ClientWatch, requests: Sequence[SentRequest]) -> dict[str, Any]:
    """Return the client's cost for the result."""
    return {
        "cpu_s": round(watch.cpu_s, 3),
        "cpu_share_of_a_core": round(watch.cpu_s / watch.wall_s, 4),
        "cpu_s_per_request": round(watch.cpu_s / len(requests), 6),
        "send_late_s": distribution(map(late_s, requests)),
        "loop_late_s": distribution(watch.lags_s),
    }


def warnings(client: Mapping[str, Any], requests: Sequence[SentRequest]) -> list[str]:
    """Return sentences on how the client limited the measurement; empty if it did not."""
    found = []
    if (share := client["cpu_share_of_a_core"]) > MOST_CPU:
        found.append(
            f"The client used {share:.0%} of a core and has only one: part of the latencies may be"
            " its own. Share the load among several antefix bench."
        )
    first = distribution(map(ttft_s, requests))
    most_s = max(MOST_LATE_S, MOST_LATE_OF_TTFT * first["p50"] if first else 0.0)
    for what, name in (("sent", "send_late_s"), ("read", "loop_late_s")):
        percent, late = tail_of(client[name]) if client[name] else (99, 0.0)
        if late > most_s:
            share = "a hundred" if percent == 99 else "ten"
            found.append(
                f"The client had to wait for its core: one request in {share} was {what}"
                f" {1000 * late:.1f} ms late or more, which the latencies include."
                " Run it on a machine with idle cores, or offer less."
            )
    if any("Too many open files" in request.reason for request in requests):
        found.append(
            "The client ran out of file descriptors, and some requests were not sent."
            " Raise its limit with ulimit -n."
        )
    return found
