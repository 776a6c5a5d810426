"""A cheap streaming client: it times bytes and parses nothing."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp


@dataclass(frozen=True)
class Endpoint:
    """The target of requests: a gateway, or an engine's server."""

    name: str
    url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)


Measure = Callable[[Endpoint], Awaitable[float]]


def session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=300)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def ttft(
    http: aiohttp.ClientSession, endpoint: Endpoint, model: str, prompt: str, max_tokens: int
) -> float:
    """Return the seconds to the first byte of one greedy stream of exactly `max_tokens` tokens.

    Raises on any error and on a stream that ends early.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    started = time.perf_counter()
    first = None
    last = b""
    url = endpoint.url + "/v1/completions"
    async with http.post(url, json=body, headers=endpoint.headers) as answer:
        answer.raise_for_status()
        async for chunk in answer.content.iter_any():
            if first is None:
                first = time.perf_counter()
            last = (last + chunk)[-64:]
    if first is None or not last.rstrip().endswith(b"data: [DONE]"):
        raise RuntimeError(f"{endpoint.name} ended a stream early, with {last!r}")
    return first - started


async def throughput(
    http: aiohttp.ClientSession,
    endpoint: Endpoint,
    model: str,
    prompts: list[str],
    max_tokens: int,
) -> float:
    """Return streamed tokens per second with all `prompts` running at once."""
    started = time.perf_counter()
    await asyncio.gather(*(ttft(http, endpoint, model, p, max_tokens) for p in prompts))
    return len(prompts) * max_tokens / (time.perf_counter() - started)


async def tokenize(http: aiohttp.ClientSession, endpoint: Endpoint, model: str) -> float:
    """Return the seconds of a call that the engine answers without a step of its model."""
    body = {"model": model, "prompt": "hello"}
    started = time.perf_counter()
    url = endpoint.url + "/tokenize"
    async with http.post(url, json=body, headers=endpoint.headers) as answer:
        answer.raise_for_status()
        await answer.read()
    return time.perf_counter() - started


async def interleaved(
    endpoints: list[Endpoint], measure: Measure, rounds: int, warmup: int
) -> dict[str, list[float]]:
    """Run `measure` on each endpoint, `rounds` times, in a new order each round."""
    figures: dict[str, list[float]] = {endpoint.name: [] for endpoint in endpoints}
    for turn in range(warmup + rounds):
        for endpoint in random.sample(endpoints, len(endpoints)):
            figure = await measure(endpoint)
            if turn >= warmup:
                figures[endpoint.name].append(figure)
    return figures
