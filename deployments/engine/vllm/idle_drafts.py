"""A draft model of vLLM's model runner V2 drafts nothing while speculation is switched off.

`propose` drafts as many tokens as are configured, whatever number it is given, and the runner
throws them away: switching off would save nothing. Here the draft model's KV cache is kept up to
date, one forward a step, and no more. V1's draft models and V2's EAGLE heads do so by themselves.
Source: vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py of vLLM 0.32.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def draft_nothing_while_off() -> None:
    """In a worker's process. Once more changes nothing."""
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    propose = StandaloneARSpeculator.propose
    decode = StandaloneARSpeculator._multi_step_decode

    def propose_as_many(
        self: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
    ) -> Any:
        # ranks of an engine's data parallelism draft together, or wait for each other
        self.antefix_is_off = num_speculative_tokens == 0 and self.dp_size == 1
        return propose(self, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)

    def decode_while_on(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self.antefix_is_off:
            decode(self, *args, **kwargs)

    StandaloneARSpeculator.propose = propose_as_many
    StandaloneARSpeculator._multi_step_decode = decode_while_on
