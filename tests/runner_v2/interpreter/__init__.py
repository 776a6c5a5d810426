"""Lets vLLM's model runner V2 run on a CPU: Triton's own interpreter runs its kernels.

vLLM 0.32's CPU build has that runner (vllm/v1/worker/cpu/) for a `triton` with a backend "cpu",
which is not on PyPI. This package gives PyPI's `triton` a backend of that name, and
TRITON_INTERPRET=1 interprets. `environment` names it in two entry points: `triton.backends` and
`vllm.general_plugins`.
"""

from __future__ import annotations

import os
from typing import Any

ASYNC = "ANTEFIX_TEST_ASYNC"


def patch() -> None:
    """vLLM calls it in each of its processes."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from vllm.v1.sample.ops import topk_topp_sampler

    # the kernel calls a tensor's method on its loop variable, which is an int when interpreted
    topk_topp_sampler.apply_top_k_top_p_triton = topk_topp_sampler.apply_top_k_top_p_pytorch
    if os.environ.get(ASYNC) == "1":
        _schedule_asynchronously()


def _schedule_asynchronously() -> None:
    """As on a GPU. vLLM's CPU platform turns it off."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type[CpuPlatform], config: Any) -> None:
        check(cls, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
