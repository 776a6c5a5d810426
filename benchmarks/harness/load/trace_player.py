"""Plays a trace against a real gateway, open loop, with prompts that no other request has."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from cli.gateway.calibrating import TOKEN_IDS
from cli.gateway.stream_client import Endpoint
from loadgen.player import Clock, PlannedRequest, PlannedSession, Player, SentRequest
from simulator.traces import Request, Trace

# The fewest and most tokens of a prompt, and of an answer.
Sizes = tuple[tuple[int, int], tuple[int, int]]
# No answer is waited for longer.
TIMEOUT_S = 120.0
PATH = "/v1/completions"


@dataclass(frozen=True)
class ReplayedRequest:
    """One request. `status` 0: interrupted. `error`: why there is no whole answer. `ttft` and
    `sent_late`: seconds since it was due. The rest is from the answer's headers; `gateway_ttft`
    counts from its arrival at the gateway, `predicted_ttft` from its placement."""

    at: float
    status: int
    ttft: float | None = None
    replica: str | None = None
    retry_after: str | None = None
    gateway_ttft: float | None = None
    sent_late: float | None = None
    error: str = ""
    predicted_ttft: float | None = None

    def met(self, slo_s: float) -> bool:
        return self.ttft is not None and self.ttft <= slo_s

    @property
    def is_fair(self) -> bool:
        """A success, or a 429 with `Retry-After`."""
        if self.status == 429:
            return (self.retry_after or "").isdigit()
        return self.status == 200 and self.ttft is not None


async def play(
    http: aiohttp.ClientSession, gateway: Endpoint, model: str, trace: Trace
) -> list[ReplayedRequest]:
    """The outcome of each request, in the trace's order, once the trace is over."""
    # engines may have cached the prompts of another run
    rng = random.Random(time.time_ns())

    def body(request: Request) -> dict[str, Any]:
        return {
            "model": model,
            "prompt": rng.choices(TOKEN_IDS, k=request.prompt_tokens),
            "max_tokens": request.answer_tokens,
            "ignore_eos": True,
            "stream": True,
        }

    clock = Clock()
    player = Player(http, gateway.url, gateway.headers, TIMEOUT_S, clock)
    sessions = [
        PlannedSession(
            str(number), request.at, [PlannedRequest(PATH, functools.partial(body, request))]
        )
        for number, request in enumerate(trace.requests)
    ]
    found = await player.play(sessions)
    await clock.until(trace.seconds)
    return [_replayed(sent) for sent in found]


def _replayed(sent: SentRequest) -> ReplayedRequest:
    if sent.status == 0 or (sent.status == 200 and sent.error is not None):
        return ReplayedRequest(sent.due_s, 0, error=f"{sent.error}: {sent.reason}")
    ttft_ms = sent.headers.get("x-antefix-ttft-ms")
    predicted_ms = sent.headers.get("x-antefix-predicted-ttft-ms")
    return ReplayedRequest(
        sent.due_s,
        sent.status,
        sent.first_byte_s - sent.due_s if sent.first_byte_s is not None else None,
        sent.headers.get("x-antefix-replica"),
        sent.headers.get("retry-after"),
        float(ttft_ms) / 1000 if ttft_ms else None,
        sent.sent_s - sent.due_s,
        f"{sent.error}: {sent.reason}" if sent.error is not None else "",
        float(predicted_ms) / 1000 if predicted_ms else None,
    )


def poisson(
    name: str,
    rate: Callable[[float], float],
    most: float,
    seconds: float,
    sizes: Sizes,
    seed: int,
) -> Trace:
    """Arrivals of a Poisson process with this `rate`, at most `most`, requests a second."""
    rng, at, requests = random.Random(seed), 0.0, []
    prompt, answer = sizes
    while (at := at + rng.expovariate(most)) < seconds:
        if rng.random() * most < rate(at):
            requests.append(Request(at, rng.randint(*prompt), rng.randint(*answer)))
    return Trace(name, tuple(requests), seconds)
