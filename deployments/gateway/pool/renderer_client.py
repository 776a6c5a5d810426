"""How a pool's engines turn requests into tokens, learned from one of them.

The engine exports its tokenizer and chat template (`deployments.prompt.facts`), so that a gateway
needs no model files of its own and cannot disagree with the engines it serves. Until it has
them, and for what only the engine can render, prompts are placed by load.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import aiohttp

from common.loops import forever
from deployments.gateway.intake.long_prompts import LONG_PROMPTS
from deployments.prompt import PromptTokens, RendererFacts
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import RENDERER_PATH
from router.load import LoadBoard, ReplicaLoad

logger = logging.getLogger("ray.serve")

FETCH_TIMEOUT_S = 30.0


class RendererClient:
    """`prompt_tokens` follows what most of the pool's replicas say, and stays while any says it."""

    def __init__(self, session: aiohttp.ClientSession, secret: str, board: LoadBoard) -> None:
        self._session = session
        self._passes = EnginePasses(secret)
        self._board = board
        self._digest = ""
        self.prompt_tokens: PromptTokens | None = None

    async def run(self, next_reading: Callable[[], Awaitable[None]]) -> None:
        """Keep `prompt_tokens` current until cancelled; `next_reading` returns when the board may
        have changed."""

        async def follow() -> None:
            await next_reading()
            await self._look()

        await forever(
            "renderer",
            follow,
            fails="prompts are placed by load alone",
            logger=logger,
            outages=(aiohttp.ClientError, OSError, TimeoutError),
        )

    async def _look(self) -> None:
        loads = [load for load in self._board.loads().values() if load.renderer]
        digests = Counter(load.renderer for load in loads)
        if digests and self._digest not in digests:
            digest = digests.most_common(1)[0][0]
            await self._learn(random.choice([load for load in loads if load.renderer == digest]))
            self._digest = digest

    async def _learn(self, load: ReplicaLoad) -> None:
        answer = await self._session.get(
            load.url + RENDERER_PATH,
            headers=self._passes.headers(load.url, path=RENDERER_PATH),
            timeout=aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S),
        )
        async with answer:
            answer.raise_for_status()
            body = await answer.read()
        # a vocabulary takes up to a second to build
        self.prompt_tokens = await asyncio.to_thread(_prompt_tokens, body, load.renderer)


def _prompt_tokens(body: bytes, digest: str) -> PromptTokens:
    """`digest` is of the replica's signed lease. Raises ValueError for other facts."""
    facts = RendererFacts.from_json(body)
    if facts.digest != digest:
        raise ValueError("these are another engine's facts")
    return PromptTokens(facts, LONG_PROMPTS.elsewhere)
