"""Requests for many adapters, and whose weights answered each of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.harness.fleets.fleet import BenchFleet

PATH = "/v1/completions"
TIMEOUT_S = 120.0
# Log-probabilities of one prompt by the same weights differ by less in another batch, and by other
# weights by more.
SAME_WEIGHTS = 0.01
TOP = 5

Fingerprint = tuple[float, ...]
"""The highest log-probabilities of the first token, by one adapter."""


@dataclass(frozen=True)
class AdapterArrival:
    """`at`: seconds after the begin. `rank`: of its adapter by popularity, 0 first."""

    at: float
    rank: int
    adapter: str


@dataclass(frozen=True)
class Answered:
    """`engine_name`: the adapter's, by which the engine answered. `status` 0: interrupted."""

    asked: AdapterArrival
    status: int
    ttft_s: float = 0.0
    engine_name: str = ""
    fingerprint: Fingerprint = ()


def zipf(
    names: Sequence[str], rate: float, seconds: float, skew: float, seed: int
) -> list[AdapterArrival]:
    """Poisson arrivals. The n-th most popular adapter has a share in proportion to n**-skew; which
    that is depends on the seed."""
    rng = random.Random(seed)
    ranked = rng.sample(names, len(names))
    weights = [(place + 1) ** -skew for place in range(len(ranked))]
    places, found, at = range(len(ranked)), [], rng.expovariate(rate)
    while at < seconds:
        (rank,) = rng.choices(places, weights)
        found.append(AdapterArrival(at, rank, ranked[rank]))
        at += rng.expovariate(rate)
    return found


def least_loads(
    warm_up: Sequence[AdapterArrival], asked: Sequence[AdapterArrival], slots: int
) -> int:
    """The fewest loads for `asked` in N slots, of which each request needs one: it evicts the
    adapter that is needed last (L. A. Belady, IBM Systems Journal 5(2), 1966). The slots begin
    empty, before `warm_up`, whose loads do not count."""
    adapters = [one.adapter for one in (*warm_up, *asked)]
    needed_next, last_seen = [len(adapters)] * len(adapters), dict[str, int]()
    for place in reversed(range(len(adapters))):
        needed_next[place] = last_seen.get(adapters[place], len(adapters))
        last_seen[adapters[place]] = place
    held, loads = dict[str, int](), 0
    for place, adapter in enumerate(adapters):
        if adapter not in held:
            loads += place >= len(warm_up)
            if len(held) == slots:
                held.pop(max(held, key=held.__getitem__))
        held[adapter] = needed_next[place]
    return loads


class AdapterTraffic:
    """Requests for adapters to one fleet. All prompts have the same tokens, and caches share none
    of them: the answer to each depends on its weights only."""

    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet, settings: Mapping[str, Any]):
        rng = random.Random(0)
        self._http = http
        self._fleet = fleet
        self._prompt = [rng.randrange(1000, 40_000) for _ in range(settings["prompt_tokens"])]
        self._output_tokens = settings["output_tokens"]
        self._sent = 0

    async def play(self, asked: Sequence[AdapterArrival], policy: str) -> list[Answered]:
        began = time.monotonic()

        async def one(request: AdapterArrival) -> Answered:
            await asyncio.sleep(max(0.0, began + request.at - time.monotonic()))
            return await self.ask(request, policy)

        return await asyncio.gather(*(one(request) for request in asked))

    async def ask(self, request: AdapterArrival, policy: str = "prefix") -> Answered:
        self._sent += 1
        body = {
            "model": request.adapter,
            "prompt": self._prompt,
            "max_tokens": self._output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": TOP,
            "cache_salt": f"{time.time_ns()}-{self._sent}",
        }
        headers = {**self._fleet.gateway.headers, "x-antefix-policy": policy}
        headers["x-session-id"] = request.adapter
        url = self._fleet.gateway.url + PATH
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        try:
            async with self._http.post(url, json=body, headers=headers, timeout=timeout) as answer:
                told = await answer.json()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return Answered(request, 0)
        if answer.status != 200:
            return Answered(request, answer.status)
        first = told["choices"][0]["logprobs"]["top_logprobs"][0]
        return Answered(
            request,
            200,
            float(answer.headers["x-antefix-ttft-ms"]) / 1000,
            answer.headers["x-antefix-model"],
            tuple(sorted(first.values(), reverse=True)[:TOP]),
        )


def are_same(one: Fingerprint, other: Fingerprint) -> bool:
    return len(one) == len(other) and all(
        abs(a - b) <= SAME_WEIGHTS for a, b in zip(one, other, strict=True)
    )


def wrong(answers: Sequence[Answered], known: Mapping[str, Fingerprint]) -> list[Answered]:
    """Answers of other weights than those of their adapter. `known`: by the engine's name."""
    return [
        answer
        for answer in answers
        if answer.status == 200
        and not (
            answer.engine_name.startswith(f"{answer.asked.adapter}@")
            and answer.engine_name in known
            and are_same(answer.fingerprint, known[answer.engine_name])
        )
    ]
