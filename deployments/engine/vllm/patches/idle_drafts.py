"""A draft model of vLLM's model runner V2 drafts nothing while speculation is off.

`propose` drafts the configured number of tokens, for any number that it is given, and the runner
discards them: switching off would save nothing. Here only the draft model's KV cache is updated,
one forward pass per step. V1's draft models and V2's EAGLE heads do this themselves. Source:
vllm/v1/worker/gpu/spec_decode/standalone_ar/speculator.py of vLLM 0.32.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def draft_nothing_while_off() -> None:
    """Install in a worker's process. Repeated calls have no effect."""
    from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator

    propose = StandaloneARSpeculator.propose
    decode = StandaloneARSpeculator._multi_step_decode

    def propose_as_many(
        self: Any, *args: Any, num_speculative_tokens: int | None = None, **kwargs: Any
    ) -> Any:
        # data-parallel ranks of an engine draft together, or wait for each other
        self.antefix_is_off = num_speculative_tokens == 0 and self.dp_size == 1
        return propose(self, *args, num_speculative_tokens=num_speculative_tokens, **kwargs)

    def decode_while_on(self: Any, *args: Any, **kwargs: Any) -> None:
        if not self.antefix_is_off:
            decode(self, *args, **kwargs)

    StandaloneARSpeculator.propose = propose_as_many
    StandaloneARSpeculator._multi_step_decode = decode_while_on
