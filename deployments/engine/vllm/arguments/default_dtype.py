"""The dtype of an engine on CPUs whose arguments set none (`weights.model.cpu_dtype`)."""

from __future__ import annotations

import logging

from vllm.engine.arg_utils import EngineArgs
from vllm.platforms import current_platform

from weights.model.cpu_dtype import CpuDtype, dtype_of_this_cpu

logger = logging.getLogger("ray.serve")


def choose_dtype(args: EngineArgs, on_cpu: bool | None = None) -> None:
    """Set `args.dtype` to the faster one of this CPU, and log which; only if it is "auto".

    GPUs and quantized models keep vLLM's choice: kernels for quantized weights support few dtypes.
    `on_cpu`: whether the engine computes on CPUs, by default as in vLLM's build.
    """
    if args.dtype != "auto" or not (current_platform.is_cpu() if on_cpu is None else on_cpu):
        return
    if args.create_model_config().quantization is not None:
        return
    chosen: CpuDtype = dtype_of_this_cpu()
    args.dtype = chosen.dtype
    logger.info(
        "the engine computes in %s: %s; engine_args.dtype overrides it", chosen.dtype, chosen.why
    )
