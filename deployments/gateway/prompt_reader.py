"""Reads a request's prompt as its pool's engines will: tokens, segment keys, who has them cached.

The renderer comes from an engine (`RendererClient`); while none has said how it renders, and for
what only an engine can render, a prompt's length is estimated and it is placed by load.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from typing import Any

from deployments.fleet.pool import Pool
from deployments.gateway import request_body
from deployments.gateway.renderer_client import RendererClient
from deployments.gateway.request import EngineRequest, Prompt
from observability.metrics import RoutingMetrics
from router.index import Depths
from router.load import LoadBoard
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.segment_keys import Namespace, SegmentHasher

# A longer body is tokenized in a thread: its milliseconds would be everybody's.
LONG_BODY_BYTES = 16384


class PromptReader:
    """Of one pool, by its settings (`pool`). `renderer` is to read."""

    def __init__(
        self,
        pool: Pool,
        renderer: RendererClient,
        hasher: SegmentHasher,
        board: LoadBoard,
        feeds: PoolFeeds,
        metrics: RoutingMetrics,
    ) -> None:
        self.pool = pool
        self._hasher = hasher
        self._board = board
        self._feeds = feeds
        self._metrics = metrics
        self.renderer = renderer

    async def read(
        self, request: EngineRequest, fields: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Prompt:
        """What is to be known before placing. Never raises, never waits beyond the budget."""
        began = time.monotonic()
        session = headers.get(self.pool.session_header)
        if session is not None:  # a tenant's own: nobody sits where another's session does
            session = f"{request.tenant}\n{session}"
        if len(request.body) > LONG_BODY_BYTES:
            placement, known = await asyncio.to_thread(self._tokenize, request, fields, session)
        else:
            placement, known = self._tokenize(request, fields, session)
        looked, skips = time.monotonic(), self._feeds.index.breaker_open
        depths: Depths | None = {} if known else None  # {}: too short for the index to tell
        if placement.keys:
            depths = await self._feeds.look_up(placement.keys)
        ended = time.monotonic()
        if placement.keys:
            result = "skipped" if skips else "failed" if depths is None else "ok"
            self._metrics.looked_up(ended - looked, result)
        return Prompt(placement, known, depths, looked - began, ended - looked)

    def _tokenize(
        self, request: EngineRequest, fields: Mapping[str, Any], session: str | None
    ) -> tuple[PlacementRequest, bool]:
        prompt_tokens, segment_tokens = self.renderer.prompt_tokens, self._board.segment_tokens
        prompts = prompt_tokens.token_ids(request.path, fields) if prompt_tokens else None
        if not prompts:
            guess = request_body.estimate_prompt_tokens(request.body)
            return PlacementRequest(guess, (), session), False
        keys: list[bytes] = []
        if segment_tokens:
            namespace = Namespace(
                model=self.pool.model,
                revision=self.pool.revision,
                lora=request.model if request.model in self.pool.lora_names else None,
                cache_salt=request.cache_salt,
            )
            with contextlib.suppress(ValueError):  # no such token id: the engine's to refuse
                # of several prompts, the longest has the most to reuse
                keys = self._hasher.keys(namespace, max(prompts, key=len), segment_tokens)
        return PlacementRequest(sum(map(len, prompts)), tuple(keys), session), True
