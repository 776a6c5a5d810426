"""Lets vLLM's model runner V2 run on a CPU: Triton's own interpreter runs its kernels.

vLLM 0.32's CPU build has that runner (vllm/v1/worker/cpu/) for a `triton` with a backend "cpu",
which is not on PyPI. This package gives PyPI's `triton` a backend of that name, and
TRITON_INTERPRET=1 interprets. `environment` names it in two entry points: `triton.backends` and
`vllm.general_plugins`.
"""

from __future__ import annotations

import gc
import os
from typing import Any

ASYNC = "ANTEFIX_TEST_ASYNC"
# How far logits depend on the number of rows that are computed at once: a standard deviation.
NOISE = "ANTEFIX_TEST_NOISE"


def patch() -> None:
    """vLLM calls it in each of its processes."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from vllm.v1.sample.ops import topk_topp_sampler

    from tests.runner_v2.interpreter.faster import speed_up

    do_not_collect()
    speed_up()
    # the kernel calls a tensor's method on its loop variable, which is an int when interpreted
    topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch
    if os.environ.get(ASYNC) == "1":
        _schedule_asynchronously()
    if deviation := float(os.environ.get(NOISE) or 0):
        _add_noise_of_the_batch(deviation)


def do_not_collect() -> None:
    """vLLM collects garbage again and again, over all that was imported. Processes are short."""
    gc.disable()
    gc.collect = lambda generation=2: 0


def _schedule_asynchronously() -> None:
    """As on a GPU. vLLM's CPU platform turns it off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type[CpuPlatform], config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def _add_noise_of_the_batch(deviation: float) -> None:
    """The same for every batch of one size: kernels choose by it how they add."""
    import torch
    from vllm.model_executor.models.llama import LlamaForCausalLM

    compute = LlamaForCausalLM.compute_logits

    def compute_logits(self: LlamaForCausalLM, hidden_states: torch.Tensor) -> Any:
        logits = compute(self, hidden_states)
        if logits is None:
            return None
        of_this_size = torch.Generator().manual_seed(len(logits))
        noise = torch.randn(logits.shape[-1], generator=of_this_size, dtype=torch.float32)
        return logits + deviation * noise.to(logits.dtype)

    LlamaForCausalLM.compute_logits = compute_logits
