"""Measure what a tenant's large bodies cost another tenant's small requests:
make bench-large-bodies

A tenant sends a small request every 50 ms: alone and, in turn, while another one keeps 20 requests
with bodies of 4 MB in flight. Engines are played. Ends with one line of JSON: per round, the time
to the whole answer and that of /health/live, in milliseconds, and the goals, of the median round.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.harness.load.closed_loop import PATH
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from benchmarks.overhead.played import MODEL, PlayedFleet, playing
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint
from common.percentiles import P99_SAMPLES, percentile

LARGE_BYTES, SMALL_BYTES = 4_000_000, 1_000
CLIENTS, EVERY_S = 20, 0.05
# Two more than p99 needs.
SENT = P99_SAMPLES + 2
ADDED_MS_GOAL, LATE_MS_GOAL = 50.0, 50.0


@dataclass
class BodiesRound:
    """`answer_ms` of small requests, `live_ms` of /health/live; `large`: answers by status."""

    answer_ms: list[float] = field(default_factory=list)
    live_ms: list[float] = field(default_factory=list)
    large: Counter[int] = field(default_factory=Counter)

    def figures(self) -> Mapping[str, Any]:
        return {
            "answer_p50_ms": round(statistics.median(self.answer_ms), 1),
            "answer_p99_ms": round(percentile(self.answer_ms, 99), 1),
            "live_max_ms": round(max(self.live_ms), 1),
            "large": {str(status): count for status, count in sorted(self.large.items())},
        }


def body_of(size: int, number: int) -> bytes:
    """A chat of about N bytes, that no other one begins like."""
    words = f"{number} " + "word " * (size // 5)
    asked = {"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 1}
    return json.dumps(asked).encode()


async def played(http: aiohttp.ClientSession, fleet: PlayedFleet, is_beside: bool) -> BodiesRound:
    """One round; all its requests have ended."""
    found, numbers = BodiesRound(), itertools.count(time.time_ns())

    async def post(endpoint: Endpoint, size: int) -> int:
        headers = {**endpoint.headers, "content-type": "application/json"}
        data = body_of(size, next(numbers))
        async with http.post(endpoint.url + PATH, data=data, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def large() -> None:
        while True:
            found.large[await post(fleet.other, LARGE_BYTES)] += 1

    async def small() -> None:
        began = time.perf_counter()
        if (status := await post(fleet.gateway, SMALL_BYTES)) != 200:
            raise RuntimeError(f"a small request got {status}")
        found.answer_ms.append(1000 * (time.perf_counter() - began))

    async def live() -> None:
        began = time.perf_counter()
        async with http.get(f"{fleet.gateway.url}/health/live") as answer:
            answer.raise_for_status()
        found.live_ms.append(1000 * (time.perf_counter() - began))

    others = [asyncio.create_task(large()) for _ in range(CLIENTS * is_beside)]
    asked = []
    for _ in range(SENT):
        asked += [asyncio.create_task(small()), asyncio.create_task(live())]
        await asyncio.sleep(EVERY_S)
    await asyncio.gather(*asked)
    for other in others:
        other.cancel()
        with suppress(asyncio.CancelledError):
            await other
    return found


async def measure(fleet: PlayedFleet, rounds: int) -> Mapping[str, list[BodiesRound]]:
    async with stream_client.session() as http:
        await played(http, fleet, False)  # warms up
        found: dict[str, list[BodiesRound]] = {"alone": [], "beside": []}
        for _ in range(rounds):
            for name, of in found.items():
                of.append(await played(http, fleet, name == "beside"))
                print(name, json.dumps(of[-1].figures()), flush=True)
    return found


def goals(alone: Sequence[BodiesRound], beside: Sequence[BodiesRound]) -> Mapping[str, Any]:
    def p99(of: BodiesRound) -> float:
        return percentile(of.answer_ms, 99)

    pairs = zip(alone, beside, strict=True)
    added = statistics.median(p99(with_others) - p99(by_itself) for by_itself, with_others in pairs)
    late = statistics.median(max(of.live_ms) for of in beside)
    return {
        "added_p99_ms": report.goal(added, at_most=ADDED_MS_GOAL),
        "live_max_ms": report.goal(late, at_most=LATE_MS_GOAL),
    }


def main() -> None:
    parser = parser_of("overhead.large_bodies", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with playing() as fleet:
        found = asyncio.run(measure(fleet, options.rounds))
    figures = {name: [dict(one.figures()) for one in of] for name, of in found.items()}
    report.finish("large-bodies", figures, dict(goals(**found)), seeds=[])


if __name__ == "__main__":
    main()
