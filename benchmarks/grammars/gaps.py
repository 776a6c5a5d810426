"""How long another tenant's stream stands still while an answer is costly to follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.grammars.attack import ANSWER_S, PATH, Constraint, body
from cli.gateway.stream_client import Endpoint


@dataclass(frozen=True)
class StreamGap:
    """The longest gap of the victim's stream in seconds, alone and with the costly answer."""

    alone_s: float
    beside_s: float

    @property
    def beside_of_alone(self) -> float:
        return self.beside_s / self.alone_s


@dataclass(frozen=True)
class StreamGaps:
    """Streams of `tokens` to one engine. `http` has no limit of connections."""

    http: aiohttp.ClientSession
    victim: Endpoint
    attacker: Endpoint
    model: str
    tokens: int

    async def beside_each(self, costly: Mapping[str, Constraint]) -> dict[str, StreamGap | None]:
        """Return the gap for each constraint; None: the engine refuses it."""
        await self._longest_s()  # warms up
        found: dict[str, StreamGap | None] = {}
        for name, constraint in costly.items():
            found[name] = await self._beside(constraint)
            print(name, found[name] or "refused", flush=True)
        return found

    async def _beside(self, constraint: Constraint) -> StreamGap | None:
        if await self._answer(constraint, 1) != 200:
            return None
        alone_s = await self._longest_s()
        attack = asyncio.create_task(self._attack(constraint))
        try:
            return StreamGap(alone_s, await self._longest_s())
        finally:
            attack.cancel()
            await asyncio.gather(attack, return_exceptions=True)

    async def _attack(self, constraint: Constraint) -> None:
        while True:
            await self._answer(constraint, self.tokens)

    async def _answer(self, constraint: Constraint, tokens: int) -> int:
        asked = {**body(self.model, constraint), "max_tokens": tokens}
        timeout = aiohttp.ClientTimeout(ANSWER_S)
        url, headers = self.attacker.url + PATH, self.attacker.headers
        async with self.http.post(url, json=asked, headers=headers, timeout=timeout) as answer:
            await answer.read()
            return answer.status

    async def _longest_s(self) -> float:
        """Return the longest time between two parts of a stream of the victim."""
        asked = {
            "model": self.model,
            "prompt": "Answer",
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "stream": True,
        }
        url, headers = self.victim.url + PATH, self.victim.headers
        longest_s, last = 0.0, None
        async with self.http.post(url, json=asked, headers=headers) as answer:
            answer.raise_for_status()
            async for _ in answer.content.iter_any():
                now = time.perf_counter()
                longest_s = max(longest_s, now - last if last is not None else 0.0)
                last = now
        return longest_s


def figures_of(gaps: Mapping[str, StreamGap | None]) -> dict[str, Any]:
    return {
        "refused": [name for name, gap in gaps.items() if gap is None],
        "admitted": {
            name: {
                "alone_ms": round(1000 * gap.alone_s, 1),
                "beside_ms": round(1000 * gap.beside_s, 1),
                "beside_of_alone": round(gap.beside_of_alone, 2),
            }
            for name, gap in gaps.items()
            if gap is not None
        },
    }


def worst(gaps: Mapping[str, StreamGap | None]) -> float:
    """Return the highest ratio of all admitted constraints; 1: none is admitted."""
    return max((gap.beside_of_alone for gap in gaps.values() if gap is not None), default=1.0)
