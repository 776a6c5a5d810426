"""Plays a trace against a real gateway, open loop, with prompts that no other request has."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from cli.calibrating import TOKEN_IDS
from cli.stream_client import Endpoint
from simulator.traces import Request, Trace

# The fewest and most tokens of a prompt, and of an answer.
Sizes = tuple[tuple[int, int], tuple[int, int]]
# No answer by then is none.
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ReplayedRequest:
    """One request. `status` 0: broken off. `ttft`: seconds since it was due, None without a first
    token; `predicted`, `replica` and `retry_after` as the answer's headers say."""

    at: float
    status: int
    ttft: float | None = None
    replica: str | None = None
    retry_after: str | None = None
    predicted: float | None = None

    def met(self, slo_s: float) -> bool:
        return self.ttft is not None and self.ttft <= slo_s

    @property
    def is_fair(self) -> bool:
        """A success, or a 429 that says when to come back."""
        if self.status == 429:
            return (self.retry_after or "").isdigit()
        return self.status == 200 and self.ttft is not None


async def play(
    http: aiohttp.ClientSession, gateway: Endpoint, model: str, trace: Trace
) -> list[ReplayedRequest]:
    """What came of each request, in the trace's order."""
    player = _TracePlayer(http, gateway, model, asyncio.get_running_loop().time())
    tasks = []
    for request in trace.requests:
        await player.until(request.at)
        tasks.append(asyncio.create_task(player.ask(request)))
    await player.until(trace.seconds)
    return list(await asyncio.gather(*tasks))


def poisson(
    name: str,
    rate: Callable[[float], float],
    most: float,
    seconds: float,
    sizes: Sizes,
    seed: int,
) -> Trace:
    """Arrivals of a Poisson process with this rate, at most `most`, requests a second."""
    rng, at, requests = random.Random(seed), 0.0, []
    prompt, answer = sizes
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() * most < rate(at):
            requests.append(Request(at, rng.randint(*prompt), rng.randint(*answer)))
    return Trace(name, tuple(requests), seconds)


class _TracePlayer:
    def __init__(
        self, http: aiohttp.ClientSession, gateway: Endpoint, model: str, began: float
    ) -> None:
        self._http = http
        self._gateway = gateway
        self._model = model
        self._began = began
        # anew each time: an engine may have cached what another run sent
        self._rng = random.Random(time.time_ns())

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    async def until(self, at: float) -> None:
        await asyncio.sleep(at - self._now())

    async def ask(self, request: Request) -> ReplayedRequest:
        body = {
            "model": self._model,
            "prompt": self._rng.choices(TOKEN_IDS, k=request.prompt_tokens),
            "max_tokens": request.answer_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        url, headers = self._gateway.url + "/v1/completions", self._gateway.headers
        first, last = None, b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async with self._http.post(url, json=body, headers=headers) as answer:
                    async for chunk in answer.content.iter_any():
                        first = first or self._now()
                        last = (last + chunk)[-64:]
        except (aiohttp.ClientError, TimeoutError):
            return ReplayedRequest(request.at, 0)
        told = answer.headers
        ended = answer.status == 200 and last.rstrip().endswith(b"data: [DONE]")
        return ReplayedRequest(
            request.at,
            answer.status if ended or answer.status != 200 else 0,
            first - request.at if first is not None and ended else None,
            told.get("x-antefix-replica"),
            told.get("retry-after"),
            float(ms) / 1000 if (ms := told.get("x-antefix-predicted-ttft-ms")) else None,
        )
