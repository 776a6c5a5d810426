"""Reads a request's prompt like its pool's engines: tokens, segment keys, and cached prefixes.

The tokenizer comes from an engine (`RendererClient`). Without one, and for prompts that only an
engine can render, the length is an estimate, and the request is placed by load.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
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
from deployments.wire.message_parts import media_lengths
from deployments.wire.plain_constraints import needs_trial
from observability.metrics.metrics import RoutingMetrics
from router.board.load import LoadBoard
from router.board.pool_feeds import PoolFeeds
from router.choice.policies import PlacementRequest
from router.index.index import Depths
from router.index.segment_keys import Namespace, SegmentHasher

# A longer body is tokenized in a thread, because it would delay all requests by milliseconds: a
# body of this many digits, one token each, takes 4 ms.
LONG_BODY_BYTES = 4096

# The process has one cache for all of its pools.
_KNOWN_PROMPTS = KnownPrompts()


def guess(
    request: EngineRequest, fields: Mapping[str, Any], session: str | None = None
) -> PlacementRequest:
    """Return a placement request with an estimated length, for a prompt without tokens."""
    if request.form is not None:
        tokens = sum(map(request_body.estimate_audio_tokens, request.form.files.values()))
        return PlacementRequest(tokens, (), session)
    repeated = parameters_of(request.path, fields).repeated_bytes
    tokens = request_body.estimate_prompt_tokens(request.body, repeated, media_lengths(fields))
    return PlacementRequest(tokens, (), session)


def context_lengths(pool: Pool, board: LoadBoard) -> list[int]:
    """Return the lengths that the pool's engines report and its settings set, in tokens."""
    reported = [load.max_model_len for load in board.last_known().values()]
    written = pool.engine_args.get("max_model_len")
    # vLLM chooses the length if the value is -1 or absent
    known = [written] if isinstance(written, int) and written > 0 else []
    return [*filter(None, reported), *known]


class PromptReader:
    """Reads one pool's prompts. Callers may read `renderer`, and replace the settings, `pool`."""

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
        """Return a request's prompt: its tokens, and the replicas that have its prefixes cached.

        The lookup in the index takes at most its budget; tokenizing a long prompt may take longer.
        Raises ClientDisconnect if the client leaves meanwhile.
        """
        began = time.monotonic()
        session = headers.get(self.pool.session_header)
        if session is not None:  # tenants cannot share a session's placement
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
        tokenized, skips = time.monotonic(), self._feeds.index.breaker_open
        depths: Depths | None = {} if known else None  # {}: too short to have a segment
        looked_up, tiers = await self._feeds.look_up(placement.keys, self.pool.tiers)
        if placement.keys:
            depths = looked_up
        ended = time.monotonic()
        placement = self._as_the_engine_has_it(placement, request, fields)
        if placement.keys:
            result = "skipped" if skips else "failed" if depths is None else "ok"
            self._metrics.looked_up(ended - tokenized, result)
        read_s, lookup_s = tokenized - began, ended - tokenized
        return Prompt(placement, known, depths, read_s, lookup_s, tiers)

    def _as_the_engine_has_it(
        self, placement: PlacementRequest, request: EngineRequest, fields: Mapping[str, Any]
    ) -> PlacementRequest:
        """Return the placement with the length to which the engine pads each text, and with what
        the engine needs before it computes: a trial of its constraint, its adapter."""
        tokens, parameters = placement.prompt_tokens, parameters_of(request.path, fields)
        if parameters.pads:
            context = max(context_lengths(self.pool, self._board), default=0)
            tokens = max(tokens, context * parameters.sequences)
        return replace(
            placement,
            prompt_tokens=tokens,
            needs_trial=needs_trial(fields),
            adapter=request.adapter.engine_name if request.adapter else None,
        )

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
            # placement ignores a prompt that is only counted
            counts_only=request.path == COUNT_TOKENS,
        )
        prompts = prompt_tokens.read(request.path, fields, read)
        if not prompts:
            return guess(request, fields, session), False
        # of several prompts, the longest can reuse the most
        longest = max(prompts, key=lambda prompt: prompt.tokens)
        tokens = sum(prompt.tokens for prompt in prompts)
        return PlacementRequest(tokens, tuple(longest.keys), session), True
