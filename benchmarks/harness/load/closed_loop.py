"""Clients that keep a gateway busy: each sends the next request when the last has ended."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from cli.gateway.stream_client import Endpoint
from loadgen.workloads import WORDS

PATH = "/v1/chat/completions"
PROMPTS = 256
# A conversation has one of these system prompts, and a separate question.
SYSTEM_PROMPTS, SYSTEM_SHARE = 8, 0.6


@dataclass(frozen=True)
class Round:
    """Requests served, and seconds from the first request to the last answer."""

    requests: int
    seconds: float


def bodies(model: str, prompt_words: int, tokens: int) -> list[bytes]:
    """Requests for streams of `tokens` tokens. A word is about a token."""
    rng = random.Random(1)
    system_words = int(prompt_words * SYSTEM_SHARE)

    def words(count: int) -> str:
        return " ".join(rng.choices(WORDS, k=count))

    systems = [words(system_words) for _ in range(SYSTEM_PROMPTS)]
    return [
        json.dumps(
            {
                "model": model,
                "messages": [
                    {"role": "system", "content": rng.choice(systems)},
                    {"role": "user", "content": words(prompt_words - system_words)},
                ],
                "max_tokens": tokens,
                "stream": True,
            }
        ).encode()
        for _ in range(PROMPTS)
    ]


async def play(
    http: aiohttp.ClientSession,
    gateways: Sequence[Endpoint],
    requests: Sequence[bytes],
    clients: int,
    seconds: float,
) -> Round:
    """Send requests for `seconds`, then wait for the last answers. Raises on any error."""
    began = time.perf_counter()

    async def client(number: int) -> int:
        rng = random.Random(number)
        served = 0
        while time.perf_counter() < began + seconds:
            await _ask(http, gateways[number % len(gateways)], rng.choice(requests))
            served += 1
        return served

    served = await asyncio.gather(*map(client, range(clients)))
    return Round(sum(served), time.perf_counter() - began)


async def _ask(http: aiohttp.ClientSession, gateway: Endpoint, body: bytes) -> None:
    headers = {**gateway.headers, "content-type": "application/json"}
    last = b""
    async with http.post(gateway.url + PATH, data=body, headers=headers) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {(await answer.text())[:200]}")
        async for chunk in answer.content.iter_any():
            last = (last + chunk)[-64:]
    if b"data: [DONE]" not in last:
        raise RuntimeError(f"a stream ended early, with {last!r}")
