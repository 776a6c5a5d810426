"""Whether a model's weights and the smallest useful KV cache, one request's, fit a replica.

A draft's weights and KV cache are added; those of a head (EAGLE and the like) without its token
tables, which it may share with the model. The sum is below vLLM's use, so that rejected
configurations cannot work: layers in 16 bit are not added, and blocks are not rounded up. vLLM's
check: v1/core/kv_cache_utils.py `_check_enough_kv_cache_memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weights.kernels.divisions import degrees
from weights.kernels.finding import Device, EngineConfig, Finding, Model
from weights.kernels.kernels import EXPERTS_WHILE_LOADING, WHILE_LOADING
from weights.model.cache_dtype import CACHE_DTYPES, CacheDtype
from weights.model.memory import (
    BF16,
    DRIVER_BYTES,
    FP8,
    GIB,
    MXFP4,
    RUNTIME_BYTES,
    RUNTIME_BYTES_TP,
    W8A16,
    Precision,
    activation_bytes,
    kv_bytes_of,
    kv_bytes_per_token,
    linear_bytes,
    weight_bytes,
)

# vLLM's default of --gpu-memory-utilization.
UTILIZATION = 0.92
# vLLM's smallest defaults, for a step and a batch, if the fleet file sets none.
_STEP_TOKENS, _SEQUENCES = 2048, 128
_SMALLER = "use fewer bits (antefix quantize) or a GPU with more memory"
_BLOCK = 16
_DRAFT_KEY = "engine_args.speculative_config.model"


@dataclass(frozen=True)
class _Need:
    """Minimum bytes of one GPU. `kv`: of one request of `context` tokens; `kv_token`: of one."""

    weights: int = 0
    kv: int = 0
    kv_token: float = 0.0

    def __add__(self, other: _Need) -> _Need:
        return _Need(
            self.weights + other.weights, self.kv + other.kv, self.kv_token + other.kv_token
        )


def memory_findings(
    model: Model, engine: EngineConfig, device: Device, draft: Model | None = None
) -> Iterator[Finding]:
    """Yield findings about memory. `draft`: the draft model or head, if its config is known."""
    cache = cache_dtype_of(engine)
    context = engine.context(model.shape)
    if cache is None or context is None:
        return
    weights = weight_bytes_of(model, engine)
    stages = engine.pipeline_parallel
    own = _Need(
        weights or 0,
        kv_bytes_of(model.shape, context, cache, engine.tensor_parallel) // stages,
        kv_bytes_per_token(model.shape, cache, engine.tensor_parallel) / stages,
    )
    drafts = _Need() if draft is None else _draft_need(draft, engine, context, cache)
    whole = own + drafts
    reserved = reserved_for_cache(engine, device)
    if reserved is not None:
        if whole.kv > reserved[1]:
            yield _too_long(engine, context, whole, reserved)
        return
    if device.memory_bytes is None or device.capability is None or weights is None:
        return
    usable = _usable(engine, device.memory_bytes)
    if own.weights >= usable:
        yield _too_heavy(model, engine, device, own.weights, usable)
    elif draft is not None and own.weights + own.kv <= usable < whole.weights + whole.kv:
        yield _no_room_for_draft(draft, drafts, own, usable)
    elif own.weights + own.kv > usable:
        left = (f"{_gib(usable)} less {_gib(whole.weights)} of weights", usable - whole.weights)
        yield _too_long(engine, context, whole, left)
    elif (over := whole.weights + whole.kv + _step_bytes(model, engine) - usable) > 0:
        yield Finding(
            "memory",
            False,
            "engine_args.max_model_len",
            engine.max_model_len,
            f"{_gib(whole.weights)} of weights, {_gib(whole.kv)} of KV cache for one request and "
            f"a step's working memory likely exceed the {_gib(usable)} of the {device.name} by "
            f"{_gib(over)}",
            "Lower it, or use more GPUs: antefix plan shows what fits",
        )


def memory_unknown(model: Model, engine: EngineConfig, device: Device) -> str | None:
    """Return why `memory_findings` cannot check; None if it can, or has nothing to check."""
    if engine.context(model.shape) is None:
        return None
    if cache_dtype_of(engine) is None:
        return f"the size of a KV cache of {engine.args.get('kv_cache_dtype')} is unknown"
    if device.capability is None or reserved_for_cache(engine, device) is not None:
        return None
    if device.memory_bytes is None:
        return f"that of the {device.name} is unknown"
    if weight_bytes_of(model, engine) is None:
        return f"the quantized size of {model.name} is unknown"
    return None


def _too_heavy(
    model: Model, engine: EngineConfig, device: Device, weights: int, usable: int
) -> Finding:
    whole = weights * engine.tensor_parallel
    enough = next((n for n in degrees(model, engine) if whole // n < usable * 0.9), None)
    remedy = f"Set tensor_parallel_size to {enough}, or {_SMALLER}" if enough else _SMALLER
    return Finding(
        "memory",
        True,
        "model",
        model.name,
        f"its weights take {_gib(weights)} of each GPU, but vLLM may use only {_gib(usable)} of "
        "the "
        f"{device.name}",
        remedy[0].upper() + remedy[1:],
    )


def _too_long(engine: EngineConfig, context: int, need: _Need, room: tuple[str, int]) -> Finding:
    words, left = room
    fits = int(max(left, 0) / need.kv_token / _BLOCK) * _BLOCK
    remedy = f"Set max_model_len to at most {fits}" if fits else "Lower max_model_len"
    return Finding(
        "memory",
        True,
        "engine_args.max_model_len",
        engine.max_model_len,
        f"the KV cache of one request of {context} tokens takes {_gib(need.kv)}, but only "
        f"{_gib(left)} are left ({words})",
        f"{remedy}, or give it more memory",
    )


def _no_room_for_draft(draft: Model, drafts: _Need, own: _Need, usable: int) -> Finding:
    left = usable - own.weights - own.kv
    return Finding(
        "memory",
        True,
        _DRAFT_KEY,
        draft.name,
        f"its weights take {_gib(drafts.weights)} of each GPU and its KV cache {_gib(drafts.kv)} "
        f"for one request, but the model leaves {_gib(left)}",
        "Use a smaller draft or method: ngram, or lower max_model_len",
    )


def _draft_need(draft: Model, engine: EngineConfig, context: int, cache: CacheDtype) -> _Need:
    """Return a draft's needs. The stage that drafts has all of it, so stages do not divide it."""
    degree = engine.speculation.get("draft_tensor_parallel_size")
    tp = degree if isinstance(degree, int) and degree > 0 else engine.tensor_parallel
    shape = draft.shape
    if is_a_head(draft):
        weights = sum(linear_bytes(each, BF16, tp, shape.kv_heads) for each in shape.linears())
    else:
        weights = weight_bytes_of(draft, EngineConfig({}, {}, tensor_parallel=tp)) or 0
    kv_token = kv_bytes_per_token(shape, cache, tp)
    return _Need(weights, kv_bytes_of(shape, context, cache, tp), kv_token)


def is_a_head(draft: Model) -> bool:
    """Return whether vLLM treats the draft as EAGLE, MTP or the like, which draft from the model's
    hidden states."""
    words = f"{draft.name} {draft.shape.architecture}".lower()
    return any(kind in words for kind in ("eagle", "mtp", "medusa", "speculator", "dflash"))


def weight_bytes_of(model: Model, engine: EngineConfig) -> int | None:
    """Return at least the weight bytes of one GPU; after loading, if vLLM quantizes them layer by
    layer while it loads."""
    shape, share = model.shape, engine.tensor_parallel * engine.pipeline_parallel
    if (loaded := _precisions_while_loading(model, engine)) is not None:
        linears, experts = loaded
        whole = weight_bytes(shape, linears, engine.tensor_parallel, experts)
        return whole // engine.pipeline_parallel
    if model.bytes is not None:
        halved = shape.dtype == "float32" and engine.dtype != "float32" and not model.method
        return model.bytes // (2 if halved else 1) // share
    # vLLM's Mxfp4Config quantizes only experts
    quantized = MXFP4 if model.method == "mxfp4" else None
    precision = _precision(model, engine) if quantized is None else BF16
    if precision is None:
        return None
    whole = weight_bytes(shape, precision, engine.tensor_parallel, quantized)
    return whole // engine.pipeline_parallel


def _precisions_while_loading(
    model: Model, engine: EngineConfig
) -> tuple[Precision, Precision] | None:
    """Return the precisions of linear layers and of experts; None if vLLM does not quantize while
    it loads."""
    if model.method:
        return None
    if engine.quantization in WHILE_LOADING:
        return FP8, FP8
    return (BF16, W8A16) if engine.quantization in EXPERTS_WHILE_LOADING else None


def _precision(model: Model, engine: EngineConfig) -> Precision | None:
    if not model.method:
        return None if engine.quantization else BF16
    bits = {stored.weights: stored for stored in model.stored}
    if len(bits) != 1:
        return None
    [(weights, stored)] = bits.items()
    if not weights[-1:].isdecimal():
        return None
    group = stored.group if stored.group > 0 else None
    return Precision(weights, int(weights.lstrip("intfp")), group, "bf16", None)


def cache_dtype_of(engine: EngineConfig) -> CacheDtype | None:
    """Return the dtype of the KV cache; None if it is unknown."""
    named = str(engine.args.get("kv_cache_dtype") or "auto")
    return CACHE_DTYPES.get((engine.dtype or "bfloat16") if named == "auto" else named)


def reserved_for_cache(engine: EngineConfig, device: Device) -> tuple[str, int] | None:
    """Return the bytes that the fleet file reserves for the cache, and their key."""
    given = engine.args.get("kv_cache_memory_bytes")
    if isinstance(given, int):
        return "kv_cache_memory_bytes", given
    space = engine.env.get("VLLM_CPU_KVCACHE_SPACE", "")
    if device.capability is None and space.isdecimal() and int(space) > 0:
        return "VLLM_CPU_KVCACHE_SPACE", int(space) * GIB
    return None


def _usable(engine: EngineConfig, memory: int) -> int:
    share = engine.args.get("gpu_memory_utilization")
    share = share if isinstance(share, int | float) and 0 < share <= 1 else UTILIZATION
    return int((memory - DRIVER_BYTES) * share)


def _step_bytes(model: Model, engine: EngineConfig) -> int:
    def given(name: str, default: int) -> int:
        value = engine.args.get(name)
        return value if isinstance(value, int) else default

    tokens = given("max_num_batched_tokens", _STEP_TOKENS)
    sequences = given("max_num_seqs", _SEQUENCES)
    runtime = RUNTIME_BYTES if engine.tensor_parallel == 1 else RUNTIME_BYTES_TP
    return runtime + activation_bytes(model.shape, engine.tensor_parallel, tokens, sequences)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / (1 << 20):.1f} MiB"
