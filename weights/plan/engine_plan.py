"""The plan of a configured engine: cache, speed, attention.

vLLM 0.32 chooses FlashAttention below Blackwell for caches of 16 bit (vllm/platforms/cuda.py
`_get_backend_priorities`), and Triton's for caches with scales.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.errors import Problem
from weights.kernels.cache_kernels import TRITON, named_backend
from weights.kernels.finding import Device, EngineConfig, Model
from weights.kernels.fits import UTILIZATION, cache_dtype_of, reserved_for_cache
from weights.kernels.kernels import LEAST_FOR_BFLOAT16, WHILE_LOADING
from weights.model.cache_dtype import CacheDtype
from weights.model.gpus import Gpu, gpu_called
from weights.model.memory import (
    BF16,
    FP8,
    Precision,
    budget_of,
    kv_bytes_per_token,
    kv_tokens,
)
from weights.plan.drafting import DraftEngine, draft_of
from weights.plan.roofline import RooflineEngine
from weights.plan.sizing import MOST_SEQUENCES, STEP_TOKENS, stored_precision

# FlashAttention's largest head dimension; above it vLLM uses another backend.
_LARGEST_HEAD = 256
# From this capability on, vLLM prefers FlashInfer.
_BLACKWELL = (10, 0)


@dataclass(frozen=True)
class EnginePlan:
    """Expectations. `kv_tokens` fit in the cache of one replica; `roofline` predicts its times.

    None: it is not planned, and `no_kv_tokens` or `no_roofline` is the reason. `attention`: the
    backend that vLLM should choose, empty if unknown. `is_quantized`: None if the model is unknown.
    """

    kv_tokens: int | None = None
    no_kv_tokens: str = ""
    roofline: RooflineEngine | None = None
    no_roofline: str = ""
    attention: str = ""
    is_quantized: bool | None = None


def engine_plan(
    model: Model, engine: EngineConfig, device: Device | None, draft: Model | None = None
) -> EnginePlan:
    """Return the plan. `engine.args` should set the dtype of the engine; `device` None: unknown.

    `draft`: the draft model or EAGLE-3 head, if its config is known.
    """
    plan = EnginePlan(is_quantized=bool(model.method or engine.quantization))
    cache = cache_dtype_of(engine)
    if cache is None or device is None:
        named = f"a KV cache of {engine.args.get('kv_cache_dtype')} is not planned"
        why = named if device else "its GPU is unknown"
        return replace(plan, no_kv_tokens=why, no_roofline=why)
    if device.capability is None:
        plan = replace(plan, no_roofline="the planner has no speeds of CPUs")
        if (reserved := reserved_for_cache(engine, device)) is None:
            return replace(plan, no_kv_tokens="VLLM_CPU_KVCACHE_SPACE is not set")
        tokens = kv_tokens(model.shape, reserved[1], cache, tp=engine.tensor_parallel)
        return replace(plan, kv_tokens=tokens)
    try:
        roofline = _roofline(model, engine, device, cache)
    except Problem as error:
        return replace(plan, no_kv_tokens=error.message, no_roofline=error.message)
    attention = _attention(model, engine, roofline.gpu, cache)
    plan = replace(plan, roofline=roofline, attention=attention)
    drafts = _drafts(roofline, engine, draft)
    if drafts is None:
        return replace(
            plan, no_kv_tokens="memory is not planned together with this draft's weights"
        )
    return replace(plan, kv_tokens=_gpu_tokens(roofline, engine, device, drafts))


def _drafts(
    roofline: RooflineEngine, engine: EngineConfig, draft: Model | None
) -> DraftEngine | None:
    """Return the source of drafts, n-grams if nothing drafts; None if its memory is not planned."""
    config = engine.speculation
    method, degree = config.get("method"), config.get("draft_tensor_parallel_size")
    if not config or method in ("ngram", "ngram_gpu", "suffix"):
        return DraftEngine("ngram_gpu")
    is_even = degree in (None, engine.tensor_parallel)
    if draft is None or not is_even or method not in ("eagle3", "draft_model"):
        return None
    return draft_of(roofline, method, draft.name, draft.shape)


def _roofline(
    model: Model, engine: EngineConfig, device: Device, cache: CacheDtype
) -> RooflineEngine:
    if engine.pipeline_parallel > 1:
        raise Problem("stages of a pipeline are not planned", "")
    gpu, precision = gpu_called(device.name), _precision(model, engine)
    if precision.compute not in gpu.flops:
        raise Problem(f"{gpu.name} does not compute {precision.compute}", "")
    return RooflineEngine(model.shape, gpu, precision, engine.tensor_parallel, cache)


def _precision(model: Model, engine: EngineConfig) -> Precision:
    if model.method:
        return stored_precision(model.shape)
    if engine.quantization in WHILE_LOADING:
        return FP8
    if engine.quantization:
        raise Problem(f"quantization {engine.quantization} is not planned", "")
    return BF16


def _gpu_tokens(
    roofline: RooflineEngine, engine: EngineConfig, device: Device, drafts: DraftEngine
) -> int:
    def given(name: str, default: float) -> float:
        value = engine.args.get(name)
        return value if isinstance(value, int | float) else default

    shape, tp = roofline.shape, roofline.tp
    reserved = reserved_for_cache(engine, device)
    budget = budget_of(
        *(shape, roofline.gpu, roofline.precision, tp),
        utilization=given("gpu_memory_utilization", UTILIZATION),
        step_tokens=int(given("max_num_batched_tokens", STEP_TOKENS)),
        sequences=int(given("max_num_seqs", MOST_SEQUENCES)),
    )
    room = reserved[1] if reserved else budget.kv - drafts.weight_bytes
    of_model = kv_bytes_per_token(shape, roofline.cache, tp)
    share = of_model / (of_model + drafts.kv_token_bytes)
    return kv_tokens(shape, int(room * share), roofline.cache, tp=tp)


def _attention(model: Model, engine: EngineConfig, gpu: Gpu, cache: CacheDtype) -> str:
    named = named_backend(engine)[1]
    if named:
        return named
    if cache.has_scales:
        return TRITON
    is_usual = not model.shape.is_mla and model.shape.head_dim <= _LARGEST_HEAD
    has_flash = LEAST_FOR_BFLOAT16 <= gpu.capability < _BLACKWELL
    return "FLASH_ATTN" if is_usual and has_flash and cache.bits == 16 else ""
