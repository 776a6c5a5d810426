"""Faults of serving a model with these arguments on this device, before it is loaded.

A pure function of a model's config.json and the engine's arguments. `refuses` marks what vLLM
cannot start or would corrupt; a warning marks what works slowly or not as intended. Unknown facts
give no findings. The rules are vLLM 0.32's: weights.kernels.kernels, weights.kernels.cache_kernels,
weights.kernels.divisions and weights.kernels.fits name their sources. Contexts follow
config/model.py `_get_and_verify_max_len`, drafts config/speculative.py
`verify_equal_vocab_size_if_draft_model`.
"""

from __future__ import annotations

from collections.abc import Iterator

from weights.kernels.cache_kernels import cache_findings
from weights.kernels.divisions import dimension_findings, uneven_over
from weights.kernels.finding import Device, EngineConfig, Finding, Model, Rule
from weights.kernels.fits import is_a_head, memory_findings
from weights.kernels.kernels import (
    DEPRECATED,
    EXPERTS_WHILE_LOADING,
    LEAST_FOR_BFLOAT16,
    METHODS,
    NEED_A_CHECKPOINT,
    SLOW_BACKENDS,
    KernelVerdict,
    fits,
    is_weight_only,
    verdicts,
    verdicts_while_loading,
)

# Kinds of rope with which max_position_embeddings is the maximum, by config/model.py.
_LENGTHEN_NOTHING = ("yarn", "longrope", "llama3")
# Methods that need no weights for drafts.
_WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix")
_QUANTIZATION = "engine_args.quantization"
_DTYPE = "engine_args.dtype"
_DRAFT = "engine_args.speculative_config.model"


def findings(
    model: Model, engine: EngineConfig, device: Device | None = None, draft: Model | None = None
) -> list[Finding]:
    """Return the findings. `device` None: unknown, so kernels and memory are not checked.

    `draft`: that of speculative_config, if its config is known.
    """
    found = [*_context(model, engine), *dimension_findings(model, engine)]
    found += _named_quantization(model, engine, device)
    found += _dtype_of_kernels(model, engine)
    found += _draft_degree(engine)
    found += _draft_without_gpu(engine, device)
    if draft is not None:
        found += _draft(model, draft, engine)
    if device is not None:
        found += _kernels(model, engine, device)
        found += _bfloat16(engine, device)
        found += cache_findings(model, engine, device)
        found += memory_findings(model, engine, device, draft)
    return found


def overflow_findings(here: int | None, there: int | None, to: str) -> list[Finding]:
    """Compare the contexts, in tokens, of a pool and of its overflow pool."""
    if here is None or there is None or there >= here:
        return []
    message = (
        f"its context is {there} tokens, this pool's {here}: a longer request never overflows, and "
        "gets 429 instead"
    )
    remedy = f"Set max_model_len of {to} to {here}, or lower this pool's"
    return [Finding("overflow context", False, "overflow.to", to, message, remedy)]


def _context(model: Model, engine: EngineConfig) -> Iterator[Finding]:
    asked, most = engine.max_model_len, model.shape.max_context
    if asked is None or most is None or asked <= most:
        return
    allowed = engine.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "").lower() in ("1", "true")
    if allowed or _stretches_otherwise(engine):
        return
    key, message = "engine_args.max_model_len", f"the model was made for {most} tokens"
    remedy = f"Set it to at most {most}, or set max_position_embeddings in hf_overrides too"
    yield Finding("context", True, key, asked, message, remedy)


def _stretches_otherwise(engine: EngineConfig) -> bool:
    """Return whether positions are scaled in a way that may lengthen the context, other than
    YaRN's."""
    overrides = str(engine.args.get("hf_overrides") or "")
    return "rope" in overrides and not any(kind in overrides for kind in _LENGTHEN_NOTHING)


def _named_quantization(
    model: Model, engine: EngineConfig, device: Device | None
) -> Iterator[Finding]:
    named = engine.quantization
    allows_deprecated = engine.args.get("allow_deprecated_quantization") is True
    for method in sorted({named, model.method} & set(DEPRECATED)):
        if not allows_deprecated:
            key = _QUANTIZATION if named else "model"
            message = f"vLLM deprecates {method}, and accepts it only if allowed"
            remedy = "Quantize it again (antefix quantize), or set allow_deprecated_quantization"
            yield Finding("quantization", True, key, named or model.name, message, remedy)
    if not named:
        return
    if not model.method:
        yield from _of_plain_weights(model, engine, named)
    elif not fits(named, model.method):
        yield Finding(
            "quantization",
            True,
            _QUANTIZATION,
            named,
            f"the checkpoint is quantized with {model.method}",
            "Leave it out: vLLM reads it from the checkpoint",
        )
    elif device is not None and device.capability is None and named in ("awq_marlin", "auto_awq"):
        yield Finding(
            "quantization",
            True,
            _QUANTIZATION,
            named,
            "vLLM's CPU build knows it only as awq",
            "Leave it out: vLLM reads it from the checkpoint",
        )


def _of_plain_weights(model: Model, engine: EngineConfig, named: str) -> Iterator[Finding]:
    if named in EXPERTS_WHILE_LOADING and not model.shape.experts:
        message = "it quantizes only experts, and the model has none: its weights stay in 16 bit"
        remedy = (
            "Leave it out, and quantize the model first: antefix quantize --scheme w8a8-smoothquant"
        )
        yield Finding("quantization", False, _QUANTIZATION, named, message, remedy)
    if named not in NEED_A_CHECKPOINT or not model.knows_all:
        return
    if "quantization" in str(engine.args.get("hf_overrides")):
        return
    remedy = "Quantize it first (antefix quantize), or leave it out"
    if named == "fp8":
        remedy += ", or let vLLM do it while it loads: fp8_per_tensor"
    message = "the checkpoint is not quantized"
    yield Finding("quantization", True, _QUANTIZATION, named, message, remedy)


def _kernels(model: Model, engine: EngineConfig, device: Device) -> Iterator[Finding]:
    key, value = (_QUANTIZATION, engine.quantization) if engine.quantization else ("model", "")
    is_slow = False
    for verdict in _verdicts(model, engine, device):
        is_slow = is_slow or not verdict.refuses
        rule: Rule = "kernel" if verdict.refuses else "slow kernel"
        yield Finding(
            rule, verdict.refuses, key, value or model.name, verdict.message, verdict.remedy
        )
    if not is_slow and device.capability is not None:
        yield from _slow_by_choice(model, engine)


def _verdicts(model: Model, engine: EngineConfig, device: Device) -> Iterator[KernelVerdict]:
    if not model.method:
        yield from verdicts_while_loading(engine.quantization, device.capability)
    for stored in dict.fromkeys(model.stored):
        yield from verdicts(stored, device.capability)


def _slow_by_choice(model: Model, engine: EngineConfig) -> Iterator[Finding]:
    """Yield slow kernels that were selected although vLLM would choose a fast one."""
    named, method = engine.quantization, model.method
    integers = any(stored.weights in ("int4", "int8") for stored in model.stored)
    if named == "moe_wna16" and method in ("awq", "gptq"):
        message = "selects a slower kernel than Marlin, which this GPU has"
        yield Finding(
            "slow kernel", False, _QUANTIZATION, named, message, f"Leave it out, or {method}_marlin"
        )
    if named in ("awq", "gptq") and method == named:
        yield Finding(
            "slow kernel",
            False,
            _QUANTIZATION,
            named,
            "in vLLM releases before the one Antefix pins, it selects a kernel several times "
            "slower than "
            "Marlin, which this GPU has",
            f"Leave it out, or write {named}_marlin",
        )
    backend = engine.args.get("linear_backend")
    if backend in SLOW_BACKENDS and integers:
        message = "selects a slower kernel than vLLM's choice"
        key = "engine_args.linear_backend"
        yield Finding("slow kernel", False, key, backend, message, "Leave it out")
    if engine.env.get("VLLM_BATCH_INVARIANT") == "1" and method == "awq":
        message = "switches Marlin off for AWQ: several times slower"
        key = "env.VLLM_BATCH_INVARIANT"
        yield Finding("slow kernel", False, key, "1", message, "Leave it out")


def _dtype_of_kernels(model: Model, engine: EngineConfig) -> Iterator[Finding]:
    types = METHODS.get(model.method, ((0, 0), ()))[1]
    # compressed-tensors has kernels for float32, but not for 4 or 8 bits times 16
    if any(is_weight_only(stored) for stored in model.stored):
        types = tuple(name for name in types if name != "float32")
    if engine.dtype and types and engine.dtype not in types:
        yield Finding(
            "dtype",
            True,
            _DTYPE,
            engine.dtype,
            f"vLLM's kernels for {model.method} compute in {' or '.join(types)}",
            f"Write {types[0]}, or leave it out",
        )


def _bfloat16(engine: EngineConfig, device: Device) -> Iterator[Finding]:
    capability = device.capability
    if engine.dtype == "bfloat16" and capability is not None and capability < LEAST_FOR_BFLOAT16:
        message = f"the {device.name} has no bfloat16, which requires capability 8.0"
        yield Finding("dtype", True, _DTYPE, engine.dtype, message, "Write float16")


def _draft_degree(engine: EngineConfig) -> Iterator[Finding]:
    """Check the draft's degree, by config/speculative.py `_verify_and_get_draft_tp`, and
    v1/spec_decode/draft_model.py for a draft model, below vllm/."""
    config, whole = engine.speculation, engine.tensor_parallel
    method, degree = config.get("method"), config.get("draft_tensor_parallel_size")
    is_model = method == "draft_model"
    has_weights = is_model or ("model" in config and method not in _WITHOUT_WEIGHTS)
    allowed = (whole,) if is_model else (1, whole)
    if not isinstance(degree, int) or degree in allowed or not has_weights:
        return
    what = "a draft model on" if is_model else "a draft on one GPU or on"
    message = f"vLLM runs {what} as many GPUs as the model, {whole}"
    key = "engine_args.speculative_config.draft_tensor_parallel_size"
    yield Finding("draft", True, key, degree, message, "Leave it out")


def _draft_without_gpu(engine: EngineConfig, device: Device | None) -> Iterator[Finding]:
    method = engine.speculation.get("method")
    if method == "ngram_gpu" and device is not None and device.capability is None:
        key, message = "engine_args.speculative_config.method", "vLLM's CPU build cannot run it"
        yield Finding("draft", True, key, method, message, "Write ngram")


def _draft(model: Model, draft: Model, engine: EngineConfig) -> Iterator[Finding]:
    config = engine.speculation
    method = config.get("method")
    if method not in (None, "draft_model") or (method is None and is_a_head(draft)):
        return
    ours, theirs = model.shape.vocabulary, draft.shape.vocabulary
    if ours != theirs and not config.get("use_heterogeneous_vocab"):
        message = f"its vocabulary has {theirs} tokens, the model's {ours}"
        remedy = "Use a draft of the same family, or method: ngram"
        yield Finding("draft", True, _DRAFT, draft.name, message, remedy)
    elif uneven := uneven_over(draft, engine):
        message = f"tensor_parallel_size {engine.tensor_parallel} {uneven}"
        remedy = "Use another draft, or method: ngram"
        yield Finding("draft", True, _DRAFT, draft.name, message, remedy)
