"""Requests without an adapter, in a batch with others, in vLLM's CPU build.

vLLM gives such requests the slot -1. Its GPU kernels skip them; its CPU kernels use -1 as an index,
and so compute them with the weights of the last slot. Here their inputs are zeros, which change
nothing. Source: vllm/lora/ops/torch_ops/lora_ops.py of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

_KERNELS = ("bgmv_shrink", "bgmv_expand", "bgmv_expand_slice")


def register() -> None:
    """Register. Repeated calls have no effect."""
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for name in _KERNELS:
        kernel = getattr(lora_ops, name)
        if kernel.__module__ == lora_ops.__name__ and not hasattr(kernel, "__wrapped__"):
            # the kernels for prompts call these by their names
            setattr(lora_ops, name, masked(kernel))
            setattr(punica_cpu, name, getattr(lora_ops, name))


def masked(kernel: Callable[..., None]) -> Callable[..., None]:
    """Return the kernel with zeros for the inputs of requests without an adapter."""

    @wraps(kernel)
    def without_others(
        inputs: torch.Tensor,
        weights: torch.Tensor,
        output: torch.Tensor,
        slots: torch.Tensor,
        *more: Any,
        **named: Any,
    ) -> None:
        inputs = inputs.masked_fill((slots < 0).unsqueeze(-1), 0.0)
        kernel(inputs, weights, output, slots, *more, **named)

    return without_others
