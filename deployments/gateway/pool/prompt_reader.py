"""Reads a request's prompt as its pool's engines will: tokens, segment keys, who has them cached.

The renderer comes from an engine (`RendererClient`); while none has said how it renders, and for
what only an engine can render, a prompt's length is estimated and it is placed by load.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.types import Receive

from deployments.fleet.pool import Pool
from deployments.gateway.intake import request_body
from deployments.gateway.intake.long_prompts import LONG_PROMPTS
from deployments.gateway.intake.parameters import parameters_of
from deployments.gateway.intake.request import EngineRequest, Prompt, unless_client_leaves
from deployments.gateway.pool.known_prompts import KnownPrompts
from deployments.gateway.pool.renderer_client import RendererClient
from deployments.wire.inference_paths import COUNT_TOKENS
from observability.metrics import RoutingMetrics
from router.index import Depths
from router.load import LoadBoard
from router.policies import PlacementRequest
from router.pool_feeds import PoolFeeds
from router.segment_keys import Namespace, SegmentHasher

# A longer body is tokenized in a thread: its milliseconds would be everybody's. So many
# digits, which are a token each, take 4 ms.
LONG_BODY_BYTES = 4096

# Of this process, for all of its pools.
_KNOWN_PROMPTS = KnownPrompts()


def guess(
    request: EngineRequest, fields: Mapping[str, Any], session: str | None = None
) -> PlacementRequest:
    """What is known of a request whose prompt is not: its length, roughly."""
    if request.form is not None:
        tokens = sum(map(request_body.estimate_audio_tokens, request.form.files.values()))
        return PlacementRequest(tokens, (), session)
    repeated = parameters_of(request.path, fields).repeated_bytes
    tokens = request_body.estimate_prompt_tokens(request.body, repeated)
    return PlacementRequest(tokens, (), session)


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
        self._known = _KNOWN_PROMPTS
        self.renderer = renderer

    async def read(
        self,
        request: EngineRequest,
        fields: Mapping[str, Any],
        headers: Mapping[str, str],
        receive: Receive,
    ) -> Prompt:
        """What is to be known before placing: within the budget, but for a long prompt's tokens.

        Raises ClientDisconnect when `receive` says so meanwhile.
        """
        began = time.monotonic()
        session = headers.get(self.pool.session_header)
        if session is not None:  # a tenant's own: nobody sits where another's session does
            session = f"{request.tenant}\n{session}"
        if request.form is not None:
            placement, known = guess(request, fields, session), False
        elif len(request.body) > LONG_BODY_BYTES:
            tokenize = partial(self._tokenize, request, fields, session)
            read = LONG_PROMPTS.run(request.tenant, tokenize)
            found = await unless_client_leaves(read, receive)
            placement, known = found or (guess(request, fields, session), False)
        else:
            placement, known = self._tokenize(request, fields, session)
        looked, skips = time.monotonic(), self._feeds.index.breaker_open
        depths: Depths | None = {} if known else None  # {}: too short for the index to tell
        held = await self._feeds.look_up(placement.keys)
        if placement.keys:
            depths = held
        ended = time.monotonic()
        if placement.keys:
            result = "skipped" if skips else "failed" if depths is None else "ok"
            self._metrics.looked_up(ended - looked, result)
        return Prompt(placement, known, depths, looked - began, ended - looked)

    def _tokenize(
        self, request: EngineRequest, fields: Mapping[str, Any], session: str | None
    ) -> tuple[PlacementRequest, bool]:
        if (prompt_tokens := self.renderer.prompt_tokens) is None:
            return guess(request, fields, session), False
        adapter = None
        if request.adapter is not None or request.model in self.pool.lora_names:
            adapter = request.model
        namespace = Namespace(
            model=self.pool.model,
            revision=self.pool.revision,
            lora=adapter,
            cache_salt=request.cache_salt,
        )
        read = partial(
            self._known.read,
            renderer=prompt_tokens.digest,
            hasher=self._hasher,
            namespace=namespace,
            segment_tokens=self._board.segment_tokens,
        )
        prompts = prompt_tokens.read(request.path, fields, read)
        if not prompts:
            return guess(request, fields, session), False
        # of several prompts, the longest has the most to reuse
        longest = max(prompts, key=lambda prompt: prompt.tokens)
        tokens = sum(prompt.tokens for prompt in prompts)
        # nothing is placed by a prompt that is only counted
        keys = () if request.path == COUNT_TOKENS else tuple(longest.keys)
        return PlacementRequest(tokens, keys, session), True
