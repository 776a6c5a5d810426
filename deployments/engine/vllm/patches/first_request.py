"""A request of a GPU's engine to itself, before it serves others.

It has the engine compile the kernels that vLLM 0.32's own warm-up omits. Otherwise a step of the
first request that needs them compiles them, and all other requests wait. On an H100, that took 2 s
for `top_p` and 1 s for logprobs. Compiled kernels are kept on disk, so later starts find them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from vllm.inputs import TokensPrompt
from vllm.sampling_params import SamplingParams

logger = logging.getLogger("ray.serve")

# Token 1 is in every vocabulary. One token of output: the engine's statistics are of its steps.
PROMPT = (1, 1, 1, 1)
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "top_k": 20, "seed": 1, "max_tokens": 1}
WITHIN_S = 120.0


async def send_first_request(engine: Any, within_s: float = WITHIN_S) -> None:
    """Send it to an AsyncLLM and await the answer. An error only costs the time that it would have
    saved, and is logged."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(within_s):
            prompt = TokensPrompt(prompt_token_ids=list(PROMPT))
            has_logprobs = engine.model_config.max_logprobs != 0
            asked = SamplingParams(**SAMPLED, logprobs=1 if has_logprobs else None)
            async for _ in engine.generate(prompt, asked, "antefix-first"):
                pass
            await engine.reset_prefix_cache()
    except Exception:
        logger.warning("the engine failed to answer its own first request", exc_info=True)
    else:
        logger.info("the engine's own first request took %.1f s", time.monotonic() - began)
