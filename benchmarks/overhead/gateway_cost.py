"""What a request costs a gateway: its CPU time, and the delay of a first token.

The CPU time of an idle gateway is subtracted. The gateway is not busy, so it passes on each token
by itself. A token's cost is the difference between long and short answers, measured in turn.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import psutil

from benchmarks.harness.load.closed_loop import bodies, play
from benchmarks.harness.results import report
from benchmarks.overhead.played import MODEL, PROMPT_TOKENS, TOKENS, PlayedFleet
from cli.gateway import stream_client
from cli.gateway.stream_client import Endpoint
from common.percentiles import P99_SAMPLES, percentile

CLIENTS, LONG_CLIENTS = 32, 2
LONG_TOKENS, LONG_PROMPT_TOKENS = 512, 100_000
TTFT_ROUNDS, ROUNDS = P99_SAMPLES, 5
ROUND_S, IDLE_S = 6.0, 20.0

GOALS = {
    "added_ttft_ms_p50": {"at_most": 3.0},
    "added_ttft_ms_p99": {"at_most": 8.0},
    "gateway_cpu_ms_per_request": {"at_most": 3.0},
    "gateway_cpu_ms_per_request_of_100000_prompt_tokens": {"at_most": 20.0},
    "gateway_and_redis_cpu_ms_per_s_idle": {"at_most": 10.0},
}


async def measure(fleet: PlayedFleet, rounds: int = ROUNDS) -> dict[str, float]:
    short = bodies(MODEL, PROMPT_TOKENS, TOKENS)
    answers = bodies(MODEL, PROMPT_TOKENS, LONG_TOKENS)
    prompts = bodies(MODEL, LONG_PROMPT_TOKENS, 2)[:4]
    async with stream_client.session() as http:
        meter = _Meter(fleet, http)
        await meter.cpu_ms(short, CLIENTS)  # warms up
        await meter.cpu_ms(prompts, LONG_CLIENTS)
        await meter.look_idle()
        control = [await meter.cpu_ms(short, CLIENTS) for _ in range(2 * rounds)]
        ttfts = await _ttfts(fleet, http)
        found: list[list[float]] = [[], [], []]
        for _ in range(rounds):
            found[0].append(await meter.cpu_ms(short, CLIENTS))
            found[1].append(await meter.cpu_ms(answers, CLIENTS))
            found[2].append(await meter.cpu_ms(prompts, LONG_CLIENTS))
    per_token = [
        (of_long - of_short) / (LONG_TOKENS - TOKENS)
        for of_short, of_long in zip(found[0], found[1], strict=True)
    ]
    added = added_ms(ttfts)
    per_token_ms = statistics.median(per_token)
    return {
        "added_ttft_ms_p50": statistics.median(added),
        "added_ttft_ms_p99": percentile(added, 99),
        "gateway_cpu_ms_per_request": statistics.median(found[0]),
        "gateway_cpu_ms_per_request_of_100000_prompt_tokens": statistics.median(found[2]),
        "gateway_cpu_us_per_token": 1000 * per_token_ms,
        "streamed_tokens_per_s_and_core": 1000 / per_token_ms,
        "gateway_cpu_ms_per_s_idle": meter.idle_ms_per_s,
        "gateway_and_redis_cpu_ms_per_s_idle": meter.idle_ms_per_s + meter.redis_idle_ms_per_s,
        # of which Ray and Ray Serve take as much for a replica that does nothing
        "empty_replica_cpu_ms_per_s_idle": meter.empty_idle_ms_per_s,
        **a_a(control),
    }


def added_ms(seconds: Mapping[str, Sequence[float]]) -> list[float]:
    """What the gateway adds in each round, in milliseconds."""
    pairs = zip(seconds["gateway"], seconds["direct"], strict=True)
    return [1000 * (gateway - direct) for gateway, direct in pairs]


def a_a(cpu_ms: Sequence[float]) -> dict[str, float]:
    """The ratio of two measurements of the same, of every other round each. A difference between
    commits that is no larger means nothing. At least two rounds."""
    ratio = statistics.median(cpu_ms[::2]) / statistics.median(cpu_ms[1::2])
    return {
        "gateway_cpu_a_by_a": ratio,
        "gateway_cpu_most_by_least_round": max(cpu_ms) / min(cpu_ms),
    }


def goals(figures: dict[str, float]) -> dict[str, Any]:
    return {name: report.goal(figures[name], **goal) for name, goal in GOALS.items()}


class _Meter:
    def __init__(self, fleet: PlayedFleet, http: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._http = http
        self.idle_ms_per_s = self.redis_idle_ms_per_s = self.empty_idle_ms_per_s = 0.0

    async def look_idle(self) -> None:
        """Over IDLE_S, the steps of CPU times (10 ms) are 0.5 ms a second."""
        fleet = self._fleet
        processes, began = (fleet.process, fleet.redis, fleet.empty), time.perf_counter()
        before_s = list(map(_cpu_s, processes))
        await asyncio.sleep(IDLE_S)
        seconds = time.perf_counter() - began
        self.idle_ms_per_s, self.redis_idle_ms_per_s, self.empty_idle_ms_per_s = (
            1000 * (_cpu_s(process) - before) / seconds
            for process, before in zip(processes, before_s, strict=True)
        )

    async def cpu_ms(self, requests: Sequence[bytes], clients: int) -> float:
        """CPU time per request of a round."""
        before = _cpu_s(self._fleet.process)
        played = await play(self._http, [self._fleet.gateway], requests, clients, ROUND_S)
        used_ms = 1000 * (_cpu_s(self._fleet.process) - before)
        return (used_ms - self.idle_ms_per_s * played.seconds) / played.requests


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _ttfts(fleet: PlayedFleet, http: aiohttp.ClientSession) -> dict[str, list[float]]:
    prompt = " ".join(["quick"] * PROMPT_TOKENS)

    async def one(endpoint: Endpoint) -> float:
        return await stream_client.ttft(http, endpoint, MODEL, prompt, 2)

    endpoints = [fleet.gateway, fleet.engine]
    return await stream_client.interleaved(endpoints, one, TTFT_ROUNDS, warmup=20)
