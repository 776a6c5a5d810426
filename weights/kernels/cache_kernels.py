"""Attention kernels by KV cache and GPU.

From the sources of vLLM 0.32, below vllm/: `supported_kv_cache_dtypes` of
v1/attention/backends/{flash_attn,flashinfer,triton_attn,flex_attention,cpu_attn}.py and of mla/.
FlashAttention's FP8 requires Hopper (fa_utils.py `flash_attn_supports_kv_cache_dtype`), Triton's
capability 8.9 (triton_attn.py `TritonAttentionImpl`). vLLM does not start with a configured backend
that cannot read the cache (platforms/cuda.py `get_attn_backend_cls`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weights.kernels.finding import Device, EngineConfig, Finding, Model
from weights.kernels.kernels import LEAST_FOR_BFLOAT16, LEAST_FOR_FP8, Capability
from weights.model.cache_dtype import CACHE_DTYPES

# The only backend that reads a cache with scales per token and head.
TRITON = "TRITON_ATTN"
_KEY = "engine_args.kv_cache_dtype"
_FROM_HOPPER: Capability = (9, 0)
# Backends -> the minimum capability with which each reads FP8; None: never.
_READS_FP8: Mapping[str, Capability | None] = {
    "FLASH_ATTN": _FROM_HOPPER,
    "FLASHINFER": LEAST_FOR_BFLOAT16,
    TRITON: LEAST_FOR_FP8,
    "FLEX_ATTENTION": None,
}


def cache_findings(model: Model, engine: EngineConfig, device: Device) -> Iterator[Finding]:
    named = str(engine.args.get("kv_cache_dtype") or "")
    dtype = CACHE_DTYPES.get(named)
    if dtype is not None and dtype.has_scales:
        yield from _with_scales(named, model, engine, device)
    elif named.startswith("fp8") and device.capability is not None:
        yield from _fp8(named, engine, device, device.capability)


def _with_scales(
    named: str, model: Model, engine: EngineConfig, device: Device
) -> Iterator[Finding]:
    capability = device.capability
    key, backend = named_backend(engine)
    if capability is None:
        message = "vLLM's CPU build has no attention kernel that reads such a cache"
        yield Finding("kv cache", True, _KEY, named, message, "Write auto or fp8")
    elif model.shape.is_mla:
        message = "vLLM's kernels for the model's latent attention cannot read such a cache"
        yield Finding("kv cache", True, _KEY, named, message, "Write auto")
    elif named.startswith("fp8") and capability < LEAST_FOR_FP8:
        message = f"vLLM's Triton kernels read no FP8 on the {device.name}, which has no FP8"
        yield Finding("kv cache", True, _KEY, named, message, "Write int8_per_token_head")
    elif backend not in ("", TRITON):
        message = f"it cannot read a cache of {named}: among vLLM's backends only {TRITON} can"
        remedy = f"Write {TRITON}, or leave it out"
        yield Finding("kv cache", True, key, backend, message, remedy)


def _fp8(
    named: str, engine: EngineConfig, device: Device, capability: Capability
) -> Iterator[Finding]:
    key, backend = named_backend(engine)
    if capability < LEAST_FOR_BFLOAT16:
        message = f"vLLM has no attention kernel that reads an FP8 cache on the {device.name}"
        yield Finding("kv cache", True, _KEY, named, message, "Write auto")
        return
    least = _READS_FP8.get(backend, LEAST_FOR_BFLOAT16)
    if least is None or capability < least:
        message = f"it cannot read an FP8 cache on the {device.name}"
        yield Finding("kv cache", True, key, backend, message, "Leave it out, or write auto there")
    elif capability < LEAST_FOR_FP8:
        yield Finding(
            "kv cache",
            False,
            _KEY,
            named,
            f"the {device.name} has no FP8 arithmetic, and FlashAttention cannot read such a cache "
            "there: vLLM falls back to FlashInfer, which does not start without nvcc",
            "Write auto, or int8_per_token_head, unless memory matters more than speed",
        )


def named_backend(engine: EngineConfig) -> tuple[str, str]:
    """Return the configured attention backend and its key; empty if vLLM chooses it."""
    if named := engine.args.get("attention_backend"):
        return "engine_args.attention_backend", str(named).upper()
    config = engine.args.get("attention_config")
    named = config.get("backend") if isinstance(config, Mapping) else None
    return "engine_args.attention_config.backend", str(named or "").upper()
