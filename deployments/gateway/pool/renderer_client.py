"""Fetches a pool's tokenizer and chat template from one of its engines.

Engines export them (`deployments.prompt.facts`). So a gateway needs no model files, and its tokens
cannot differ from those of its engines. Prompts are placed by load until the gateway has them, and
if only an engine can render the prompt.
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
from router.board.load import LoadBoard, ReplicaLoad

logger = logging.getLogger("ray.serve")

FETCH_TIMEOUT_S = 30.0


class RendererClient:
    """The tokenizer of a pool's prompts.

    `prompt_tokens` comes from the majority of replicas, and stays while any of them still uses it.
    """

    def __init__(self, session: aiohttp.ClientSession, secret: str, board: LoadBoard) -> None:
        self._session = session
        self._passes = EnginePasses(secret)
        self._board = board
        self._digest = ""
        self.prompt_tokens: PromptTokens | None = None

    async def run(self, next_reading: Callable[[], Awaitable[None]]) -> None:
        """Keep `prompt_tokens` up to date until cancelled.

        `next_reading` returns when the board may have changed.
        """

        async def follow() -> None:
            await next_reading()
            await self._look()

        await forever(
            "renderer",
            follow,
            fails="failed to read an engine's renderer; routing prompts by load",
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
        # building a vocabulary takes up to a second
        self.prompt_tokens = await asyncio.to_thread(_prompt_tokens, body, load.renderer)


def _prompt_tokens(body: bytes, digest: str) -> PromptTokens:
    """Build the tokenizer. Raises ValueError if the facts do not match the signed `digest`."""
    facts = RendererFacts.from_json(body)
    if facts.digest != digest:
        raise ValueError("the facts do not match the digest in the replica's lease")
    return PromptTokens(facts, LONG_PROMPTS.elsewhere)
