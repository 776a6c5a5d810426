"""The engine ends a request whose token masks take long. All others continue.

A trial follows each constraint first (`grammar_follow.py`), but no trial sees every answer. vLLM
fills the masks of a step one after the other, so one slow constraint delays all requests, and
several add up. Here the CPU time of a request's constraint is measured over each step, with all of
its prompts and sequences. After a few slow steps its constraint rejects the next token: vLLM then
ends this request only. The reason has the prefix `SLOW_MASKS`, which the replica reports as the
client's error.
Source: `StructuredOutputManager` in vllm/v1/structured_output/__init__.py of vLLM 0.32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

from deployments.engine.vllm.grammars.grammar_follow import TOKEN_MS, most_token_ms

# In a request's `extra_args`: the number of the client's request, which may have several prompts.
CLIENT_REQUEST = "antefix_client_request"
# `stop_reason` of a request that was ended: this, and the milliseconds of one of its masks.
SLOW_MASKS = "antefix_slow_masks:"
# CPU time of a slow step, and the number of slow steps after which a request is ended. A step of
# twice the time counts twice, except the first: a backend may compile in it.
SLOW_S, MOST_SLOW = 0.05, 3
# Many prompts with an ordinary constraint add up. So a request is only slow if one of its masks
# takes more than this share of what a trial allows.
QUICK_SHARE = 0.2
# CPU time of a step, over all requests, in which each request is slow whose masks take longer than
# a trial allows. `grammar_gate.py` keeps ordinary ones below it.
ALL_SLOW_S = 0.1
# After as many quick steps in a row, the slow ones no longer count.
QUICK_STEPS = 256


class MaskTimes:
    """The CPU time that a request's constraint takes, over all of its prompts and sequences.

    `step_s`: that of the current step; `slow_mask_s`: of one mask in the last slow step."""

    def __init__(self) -> None:
        self.step_s = self.slow_mask_s = 0.0
        self._masks = self._slow = self._quick = 0

    def spend(self, seconds: float, masks: int = 0) -> None:
        self.step_s += seconds
        self._masks += masks

    @property
    def mask_s(self) -> float:
        return self.step_s / max(1, self._masks)

    def end_step(self, all_s: float = 0.0, most_ms: float = TOKEN_MS) -> None:
        """`all_s`: the CPU time of the step over all requests. A trial allows `most_ms` per
        mask."""
        mask_ms = 1000 * self.mask_s
        is_one_of_them = all_s >= ALL_SLOW_S and mask_ms > most_ms
        if is_one_of_them or (self.step_s >= SLOW_S and mask_ms > QUICK_SHARE * most_ms):
            self._slow += max(1, int(self.step_s / SLOW_S)) if self._slow else 1
            self._quick, self.slow_mask_s = 0, self.mask_s
        elif not self.is_over:
            self._quick += 1
            if self._quick >= QUICK_STEPS:
                self._slow = 0
        self.step_s, self._masks = 0.0, 0

    @property
    def is_over(self) -> bool:
        return self._slow >= MOST_SLOW


@dataclass
class WatchedGrammar:
    """One of vLLM's StructuredOutputGrammar, measured. Once its request is over, it takes no time
    and rejects all tokens."""

    grammar: Any
    times: MaskTimes
    clock: Callable[[], float] = time.thread_time

    def fill_bitmask(self, bitmask: Any, index: int) -> None:
        if self.times.is_over:
            bitmask[index].fill_(-1)  # all tokens
        else:
            self.times.spend(0.0, masks=1)
            self._measured(self.grammar.fill_bitmask, bitmask, index)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        if self.times.is_over:
            return False
        return bool(self._measured(self.grammar.accept_tokens, request_id, tokens))

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        if self.times.is_over:
            return []
        found: list[int] = self._measured(self.grammar.validate_tokens, tokens)
        return found

    def rollback(self, num_tokens: int) -> None:
        self._measured(self.grammar.rollback, num_tokens)

    def _measured(self, call: Callable[..., Any], *args: Any) -> Any:
        began = self.clock()
        try:
            return call(*args)
        finally:
            self.times.spend(self.clock() - began)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grammar, name)


class MaskWatch:
    """The clients' requests of one engine, by number."""

    def __init__(self) -> None:
        self._times: WeakValueDictionary[Any, MaskTimes] = WeakValueDictionary()

    def watched(self, number: Any, grammar: Any) -> WatchedGrammar:
        # several threads compile
        return WatchedGrammar(grammar, self._times.setdefault(number, MaskTimes()))

    def end_step(self, numbers: Iterable[Any], most_ms: float = TOKEN_MS) -> None:
        """Judge what these requests have spent since the previous call. Call it before each step's
        masks."""
        found = [times for one in set(numbers) if (times := self._times.get(one)) is not None]
        all_s = sum(times.step_s for times in found)
        for times in found:
            times.end_step(all_s, most_ms)


@cache
def register() -> None:
    """Register with vLLM's engine. Repeated calls have no effect."""
    from vllm.v1.structured_output import StructuredOutputManager

    create = StructuredOutputManager._create_grammar
    fill, accept = StructuredOutputManager.grammar_bitmask, StructuredOutputManager.accept_tokens
    watch = MaskWatch()

    def create_watched(self: Any, request: Any) -> WatchedGrammar:
        return watch.watched(_number_of(request), create(self, request))

    def grammar_bitmask(
        self: Any, requests: Any, structured_output_request_ids: list[str], *args: Any, **more: Any
    ) -> Any:
        size = self.vllm_config.model_config.get_vocab_size()
        numbers = (_number_of(requests[one]) for one in structured_output_request_ids)
        watch.end_step(numbers, most_token_ms(size))
        return fill(self, requests, structured_output_request_ids, *args, **more)

    def accept_tokens(self: Any, request: Any, new_token_ids: list[int]) -> bool:
        if accept(self, request, new_token_ids):
            return True  # as for a request without a constraint
        grammar = request.structured_output_request.grammar
        if isinstance(grammar, WatchedGrammar) and grammar.times.is_over:
            request.stop_reason = f"{SLOW_MASKS}{1000 * grammar.times.slow_mask_s:.1f}"
        return False

    StructuredOutputManager._create_grammar = create_watched
    StructuredOutputManager.grammar_bitmask = grammar_bitmask
    StructuredOutputManager.accept_tokens = accept_tokens


def _number_of(request: Any) -> Any:
    """Return the number of the client's request, which the sequences of all its prompts share."""
    extra = getattr(request.sampling_params, "extra_args", None) or {}
    return extra.get(CLIENT_REQUEST, request.request_id)
