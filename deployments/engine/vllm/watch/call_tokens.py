"""Tokens that vLLM generates for one call of `generate`, whether or not the call yields them.

`stream_interval` delays tokens, and a client may leave before the next event. vLLM counts the
tokens of each sequence for its metric `vllm:generation_tokens`. The same numbers are read here when
the call ends, so both agree. Tokens that its core computes before an abort arrives there, and those
that another engine generated, are in neither. Sources, of vLLM 0.32: `add_request` and
`_update_stats_from_output` in vllm/v1/engine/output_processor.py, `RequestStateStats`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeAlias

from vllm.outputs import RequestOutput

from deployments.wire.confirmation import Confirmation

# Called with the tokens of a prompt and of its answer, and with the salt of their blocks.
OnServed: TypeAlias = "Callable[[list[int], str | None], None]"

_current: ContextVar[CallTokens | None] = ContextVar("call_tokens", default=None)


class CallTokens:
    """The tokens of one call, for its exchange.

    `counted_elsewhere`: the exchange gets the tokens as vLLM generates them.
    """

    def __init__(self, exchange: Confirmation | None, counted_elsewhere: bool) -> None:
        self._exchange = exchange
        self._counted_elsewhere = counted_elsewhere
        self._sequences: list[Any] = []  # vLLM's states of the sequences
        self._at_end: list[Callable[[], None]] = []
        self._yielded = 0
        self._has_first = False
        if exchange is not None:
            exchange.call_began()

    def begin(self) -> None:
        """Assign sequences that this task adds from now on to this call."""
        _current.set(self)

    def add(self, sequence: Any) -> None:
        if sequence not in self._sequences:
            self._sequences.append(sequence)

    def at_end(self, report: Callable[[], None]) -> None:
        """Call `report` when the call ends."""
        self._at_end.append(report)

    def yielded(self, output: Any) -> None:
        """Record that the call yields this output of vLLM next."""
        exchange = self._exchange
        if exchange is None:
            return
        if isinstance(output, RequestOutput):
            reasons = [one.finish_reason for one in output.outputs if one.finish_reason]
            exchange.finish_reason = reasons[-1] if reasons else exchange.finish_reason
        if self._counted_elsewhere:
            return
        if not self._has_first:
            self._has_first = True
            prompt_tokens = len(output.prompt_token_ids or ())
            cached_tokens = output.num_cached_tokens or 0
            exchange.first_token(prompt_tokens, cached_tokens, _since_first_token(output))
        if isinstance(output, RequestOutput):
            tokens = sum(len(one.token_ids) for one in output.outputs)
            self._yielded += tokens
            exchange.generated(tokens)

    def end(self) -> None:
        """Count what the call did not yield. vLLM generates nothing more for it."""
        for report in self._at_end:
            report()
        exchange = self._exchange
        if exchange is None:
            return
        if self._sequences:
            self._count_rest(exchange)
        exchange.call_ended()

    def _count_rest(self, exchange: Confirmation) -> None:
        first = self._sequences[0]
        prompt_tokens = len(first.prompt_token_ids or ())
        made = sum(one.stats.num_generation_tokens for one in self._sequences if one.stats)
        if self._counted_elsewhere:
            if exchange.first_token_at is None:
                exchange.unanswered(prompt_tokens)
            return
        if not self._has_first and made:
            exchange.first_token(prompt_tokens, first.num_cached_tokens)
        elif not self._has_first:
            exchange.unanswered(prompt_tokens)
        exchange.generated(max(0, made - self._yielded))


def follow(processor: Any) -> None:
    """Have vLLM's output processor report each sequence to the call that adds it."""

    def added(request: Any, state: Any, call: CallTokens) -> None:
        call.add(state)

    _after_add(processor, added)


def report_served(processor: Any, on_served: OnServed) -> None:
    """Call `on_served` at the end of each call, for each sequence of text without an adapter."""

    def report(state: Any, salt: str | None) -> None:
        answer = state.detokenizer.output_token_ids if state.detokenizer is not None else []
        on_served([*state.prompt_token_ids, *answer], salt)

    def added(request: Any, state: Any, call: CallTokens) -> None:
        if _is_text(request):
            call.at_end(partial(report, state, request.cache_salt))

    _after_add(processor, added)


def _after_add(processor: Any, added: Callable[[Any, Any, CallTokens], None]) -> None:
    add = processor.add_request

    def add_request(request: Any, *args: Any, **kwargs: Any) -> None:
        add(request, *args, **kwargs)
        call, state = _current.get(), processor.request_states.get(request.request_id)
        if call is not None and state is not None:
            added(request, state, call)

    processor.add_request = add_request


def _is_text(request: Any) -> bool:
    """Return whether only its tokens and its salt determine its blocks."""
    others = (request.lora_request, request.prompt_embeds)
    has_others = bool(request.mm_features) or any(other is not None for other in others)
    return request.prompt_token_ids is not None and not has_others


def _since_first_token(output: Any) -> float:
    """Return seconds on the engine's clock since the first token: above 0 for an answer in one
    piece."""
    metrics = getattr(output, "metrics", None)
    return max(0.0, metrics.last_token_ts - metrics.first_token_ts) if metrics else 0.0
