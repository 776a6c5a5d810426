"""Quantized weights that vLLM's build for this CPU cannot multiply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from common.errors import Problem
from weights.kernels.kernels import stored_in

# vLLM 0.32 has it in its builds for AVX-512, but not in the one for AVX2.
INT4_KERNEL = "cpu_gemm_wna16"


def refuse_missing_kernels(args: EngineArgs) -> None:
    """Raise Problem if the model has 4-bit weights and this CPU has no kernel for them.

    vLLM does not ask whether it has this kernel: the engine would start, and die at its first
    request.
    """
    if not current_platform.is_cpu():
        return
    current_platform.import_kernels()
    if not hasattr(torch.ops._C, INT4_KERNEL):
        config = args.create_model_config().hf_config
        refuse_int4(str(args.model), getattr(config, "quantization_config", None))


def refuse_int4(model: str, quantization: Mapping[str, Any] | None) -> None:
    """Raise Problem if `quantization`, config.json's `quantization_config`, has 4-bit weights."""
    if any(stored.weights == "int4" for stored in stored_in(quantization)):
        raise Problem(
            f"{model} has 4-bit weights, and vLLM multiplies them only on CPUs with AVX-512",
            "serve the unquantized weights on this CPU, or use one with AVX-512",
        )
