"""vLLM's engine, watched: what a gateway wants to know of each call, as it happens.

Sources, of vLLM 0.32: `generate` and `encode` in vllm/v1/engine/async_llm.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from autoscaling.learned.prefill_rate import queued_tokens
from deployments.engine.vllm.api_server import media_bounds
from deployments.engine.vllm.constraints import constraint_fields
from deployments.engine.vllm.grammars import constraints
from deployments.engine.vllm.grammars.grammar_gate import AdmittedConstraint, GrammarGate
from deployments.engine.vllm.grammars.grammar_threads import SLOW
from deployments.engine.vllm.grammars.mask_watch import CLIENT_REQUEST
from deployments.engine.vllm.kv_tiers.host_tier import loads_of
from deployments.engine.vllm.resuming.continuing import Continuing, tell_chunks
from deployments.engine.vllm.resuming.continuing_core import KNOWN_TOKENS
from deployments.engine.vllm.watch.call_tokens import CallTokens
from deployments.wire import confirmation, resumable, tenant
from deployments.wire.confirmation import Confirmation
from deployments.wire.resumable import ResumableExchange

# How long a request that failed waits to learn whether its engine's process has ended.
DEATH_LOOKS, DEATH_LOOK_S = 10, 0.05


@dataclass
class CallInEngine:
    """A running request; `uncached_tokens` of its prompt must be computed. `tier_tokens` are loaded
    from the host tier, from the disk tier and from another replica."""

    request_id: str
    uncached_tokens: int
    sequences: int = 1
    tier_tokens: tuple[int, int, int] = (0, 0, 0)
    has_first_token: bool = False
    came_at: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls, exchange: Confirmation | None, request_id: str, prompt_tokens: int, sequences: int
    ) -> CallInEngine:
        """Return a call of this exchange. The first of several calls has all tokens that are
        loaded, because gateways look up one prompt of a request."""
        if exchange is None:
            return cls(request_id, max(1, prompt_tokens), sequences)
        tier_tokens, exchange.tier_tokens = exchange.tier_tokens, (0, 0, 0)
        uncached_tokens = max(1, prompt_tokens - exchange.expected_cached)
        return cls(request_id, uncached_tokens, sequences, tier_tokens)


class WatchedEngine(AsyncLLM):  # type: ignore[misc]  # vLLM's types are not read
    """Reports facts about each request to a gateway, and when the whole cache was dropped."""

    continuing: Continuing
    grammars: GrammarGate

    def watch(self) -> None:
        self.on_cache_dropped: Callable[[], None] = lambda: None
        self.reports_reuse = False
        self.requests: dict[object, CallInEngine] = {}
        self.first_token_at = 0.0

    def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **more: Any
    ) -> AsyncGenerator[Any, None]:
        media_bounds.of_request().leave()
        constraints.refuse_huge(sampling_params)
        constraints.refuse_unenforced()
        if salt := tenant.salt.get():
            prompt = _salted(prompt, salt)
        # "full": vLLM also sends the events of the blocks that it reuses. A client's value in
        # `vllm_xargs` is never used: those events would be counted as blocks that are never
        # evicted.
        mode = "full" if self.reports_reuse else "incremental"
        extra_args = {**(sampling_params.extra_args or {}), "kv_cache_report_mode": mode}
        for own in (KNOWN_TOKENS, SLOW, CLIENT_REQUEST):
            extra_args.pop(own, None)
        if (sent := constraint_fields.current.get()) is not None:
            extra_args[CLIENT_REQUEST] = sent.number
        sampling_params.extra_args = extra_args
        asked = resumable.current.get()
        lora = more.get("lora_request")
        continued = self.continuing.begin(asked, prompt, sampling_params, lora) if asked else None
        exchange = confirmation.current.get()
        if exchange is not None:
            # vLLM's pull is one per request, and would be one per sequence
            source = exchange.kv_source if sampling_params.n == 1 else ""
            if (loads := loads_of(exchange.kv_tiers, source, request_id)) is not None:
                sampling_params.extra_args["kv_transfer_params"] = loads
        outputs = super().generate(prompt, sampling_params, request_id, **more)
        return self._watched(outputs, prompt, request_id, sampling_params, continued)

    def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **more: Any
    ) -> AsyncGenerator[Any, None]:
        media_bounds.of_request().leave()
        outputs = super().encode(prompt, pooling_params, request_id, **more)
        return self._watched(outputs, prompt, request_id)

    async def _watched(
        self,
        outputs: AsyncGenerator[Any, None],
        prompt: Any,
        request_id: str,
        sampling_params: Any = None,
        continued: ResumableExchange | None = None,
    ) -> AsyncGenerator[Any, None]:
        exchange = confirmation.current.get()
        prompt_tokens = _prompt_length(prompt) + (continued.known_tokens if continued else 0)
        counted_elsewhere = continued is not None and continued.reports_progress
        tokens = CallTokens(exchange, counted_elsewhere)
        sequences, key = getattr(sampling_params, "n", 1), object()
        structured = getattr(sampling_params, "structured_outputs", None)
        admission: AdmittedConstraint | None = None
        try:
            async with contextlib.aclosing(outputs):
                if structured:
                    of = tenant.current.get()
                    admission = await self.grammars.admit(structured, of, sequences)
                # from here on the request is in the engine's queue
                request = CallInEngine.of(exchange, request_id, prompt_tokens, sequences)
                self.requests[key] = request
                if admission is not None and admission.turn is not None:
                    sampling_params.extra_args[SLOW] = True
                tokens.begin()
                async for output in outputs:
                    if admission is not None:
                        admission.compiled()
                    slow_ms = constraints.slow_mask_ms(output) if structured is not None else None
                    if slow_ms is not None:
                        self.grammars.stopped(structured, slow_ms)
                        constraints.refuse_slow(sampling_params, slow_ms)
                    if sampling_params is not None:
                        constraints.refuse_unmet(sampling_params, output)
                    if continued is not None and continued.replaying:
                        yield output
                        continue
                    if continued is not None:
                        tell_chunks(continued, output)
                    if not request.has_first_token:
                        request.has_first_token, self.first_token_at = True, time.monotonic()
                    tokens.yielded(output)
                    yield output
        except (EngineDeadError, EngineGenerateError) as error:
            if continued is not None:
                continued.failed = True
            if isinstance(error, EngineGenerateError) and not await self._dies():
                raise
            if continued is not None:
                continued.lost = True
            raise EngineDeadError from error
        finally:
            self.requests.pop(key, None)
            if admission is not None:
                admission.leave()
            tokens.end()
            if continued is not None:
                self.continuing.end(continued)

    async def _dies(self) -> bool:
        """Return whether the engine's process has ended, which a request to it may learn first."""
        for _ in range(DEATH_LOOKS):
            if self.errored:
                return True
            await asyncio.sleep(DEATH_LOOK_S)
        return False

    def queue(self, prefill_rate: float | None = None) -> tuple[int, int, int, int, int, int]:
        """Return sequences without a first token, sequences with one, and the former's prompt
        tokens that must be computed, at this rate per second: the sequences of a request share its
        prompt. Then their tokens that are loaded from the host tier, read from the disk tier, and
        pulled from other replicas.

        Those count until the first token, because vLLM reports no earlier end of a load.
        """
        states = self.output_processor.request_states
        ids_of = self.output_processor.external_req_ids
        waiting, running, now = 0, 0, time.monotonic()
        host_tokens = disk_tokens = peer_tokens = 0
        queued: list[tuple[float, int]] = []
        for request in self.requests.values():
            # an answer in one piece yields nothing before its end, but vLLM's state shows its first
            # token
            if not request.has_first_token:
                own = [states.get(name) for name in ids_of.get(request.request_id, ())]
                if any(s and not s.is_prefilling for s in own):
                    request.has_first_token, self.first_token_at = True, now
            if request.has_first_token:
                running += request.sequences
            else:
                waiting += request.sequences
                queued.append((request.came_at, request.uncached_tokens))
                host_tokens += request.tier_tokens[0]
                disk_tokens += request.tier_tokens[1]
                peer_tokens += request.tier_tokens[2]
        prefill_tokens = queued_tokens(queued, self.first_token_at, now, prefill_rate)
        return waiting, running, prefill_tokens, host_tokens, disk_tokens, peer_tokens

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        # vLLM sends the event with its next step, which may be much later
        done = bool(await super().reset_prefix_cache(reset_running_requests, reset_connector))
        # if requests use the cache, vLLM keeps it, empties the host tier and sends no event
        has_tiers = self.vllm_config.kv_transfer_config is not None
        if done or (reset_connector and has_tiers):
            self.on_cache_dropped()
        return done

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        self.on_cache_dropped()
        await super().sleep(*args, **kwargs)
        self.on_cache_dropped()


def _salted(prompt: Any, salt: str) -> Any:
    """Return the prompt with the salt of its cached blocks, which are a decoder's."""
    if not isinstance(prompt, Mapping):
        return prompt
    if "decoder_prompt" in prompt:
        return {**prompt, "decoder_prompt": _salted(prompt["decoder_prompt"], salt)}
    return {**prompt, "cache_salt": salt}


def _prompt_length(prompt: Any) -> int:
    """Return the tokens of an input that vLLM's renderer has created; 1 for any other."""
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    return len(token_ids) if token_ids else 1
