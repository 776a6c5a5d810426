"""The GPU memory of a model: weights by scheme, KV cache, activations, the rest.

All sizes are bytes of one GPU of a tensor-parallel group of `tp`, all pure arithmetic. It follows
vLLM's accounting: the KV cache is the share of `gpu_memory_utilization` minus weights, minus the
peak of a profiled step, minus memory outside torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil

from weights.model.cache_dtype import CacheDtype
from weights.model.gpus import MIB, Gpu
from weights.model.model_shape import Linear, ModelShape
from weights.model.schemes import GROUP_SIZES

GIB = 1 << 30
SIXTEEN_BIT = 2
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# From vLLM's report for Llama 3 8B, github.com/vllm-project/vllm/pull/10511: 1.79 GiB that torch
# does not own on one GPU, 3.58 GiB on each of two, where NCCL has buffers.
RUNTIME_BYTES = int(1.79 * GIB)
RUNTIME_BYTES_TP = int(3.58 * GIB)
# CUDA offers less than the driver lists: 79.22 of 79.65 GiB on an H100 (the same report).
DRIVER_BYTES = 440 * MIB
# vLLM's sampler sorts the logits of a full batch: float32 values, their copies and indices. The
# same report says 1.26 GiB for 256 sequences of 128,256 tokens, which is 41 bytes each.
SAMPLER_BYTES = 41


@dataclass(frozen=True)
class Precision:
    """The storage and the computation of the linear layers.

    `compute` is the rate of the GPU that multiplies them; `schemes` their names in `antefix
    quantize`.
    """

    name: str
    bits: int
    group_size: int | None
    compute: str
    scheme: str | None
    zero_points: bool = False

    @property
    def bits_per_weight(self) -> float:
        """Return the bits per weight, including a group's 16-bit scale and zero point; scales of
        columns are counted separately."""
        if self.group_size is None:
            return self.bits
        return self.bits + (16 + (self.bits if self.zero_points else 0)) / self.group_size


BF16 = Precision("bf16", 16, None, "bf16", None)
W8A8 = Precision("w8a8", 8, None, "int8", "w8a8-smoothquant")
FP8 = Precision("fp8", 8, None, "fp8", "fp8")
W4A16 = Precision("w4a16", 4, 128, "bf16", "awq", zero_points=True)
PRECISIONS = (BF16, FP8, W8A8, W4A16)
W8A16 = Precision("w8a16", 8, None, "bf16", "w8a16")
# 32 weights share a scale of 8 bits, which is as much as 64 with one of 16 bits.
MXFP4 = Precision("mxfp4", 4, 64, "bf16", None)


def linear_bytes(linear: Linear, precision: Precision, tp: int = 1, kv_heads: int = 0) -> int:
    """Return the bytes on one GPU. Key and value heads are copied if there are fewer than GPUs."""
    split = tp if linear.shard != "none" else 1
    if linear.name in ("k_proj", "v_proj") and kv_heads:
        split = min(tp, kv_heads)
    scales = linear.outputs * linear.count * SIXTEEN_BIT if precision.bits == 8 else 0
    whole = linear.parameters * precision.bits_per_weight / 8 + scales
    return ceil(whole / split)


def weight_bytes(
    shape: ModelShape, precision: Precision, tp: int = 1, experts: Precision | None = None
) -> int:
    """Return the bytes on one GPU: linears by scheme, embeddings and norms in 16 bit. `experts`
    None: like the others."""
    linears = sum(
        linear_bytes(each, (experts or precision) if each.expert else precision, tp, shape.kv_heads)
        for each in shape.linears()
    )
    rest = ceil(shape.embedding_parameters / tp) + shape.small_parameters
    return linears + rest * SIXTEEN_BIT


def kv_bytes_per_layer(shape: ModelShape, cache: CacheDtype, tp: int = 1) -> int:
    """Return the bytes of one token in one layer, on one GPU.

    Grouped heads (arXiv 2305.13245): a key and a value each; split over the GPUs, and copied if
    there are fewer of them. Latent attention (arXiv 2405.04434): one latent, on every GPU.
    """
    if shape.is_mla:
        return cache.bytes_of(shape.kv_lora_rank + shape.qk_rope_head_dim)
    return 2 * ceil(shape.kv_heads / tp) * cache.bytes_of(shape.head_dim)


def kv_bytes_per_token(shape: ModelShape, cache: CacheDtype, tp: int = 1) -> int:
    """Return the bytes of one token in all layers, on one GPU, before any window drops it."""
    return kv_bytes_per_layer(shape, cache, tp) * shape.layers


def kv_bytes_of(shape: ModelShape, tokens: int, cache: CacheDtype, tp: int = 1) -> int:
    """Return the bytes of one sequence on one GPU: layers with a window keep at most the window."""
    per_layer = kv_bytes_per_layer(shape, cache, tp)
    if shape.sliding_window is None:
        return per_layer * shape.layers * tokens
    full = shape.full_attention_layers or 0
    sliding = (shape.layers - full) * min(tokens, shape.sliding_window)
    return per_layer * (full * tokens + sliding)


def kv_tokens(
    shape: ModelShape, budget: int, cache: CacheDtype, block: int = 16, tp: int = 1
) -> int:
    """Return the tokens in a KV cache of `budget` bytes per GPU, in whole blocks of every layer."""
    block_bytes = kv_bytes_per_token(shape, cache, tp) * block
    return max(budget, 0) // block_bytes * block


def activation_bytes(shape: ModelShape, tp: int, step_tokens: int, sequences: int) -> int:
    """Return the peak of a step: its widest layer, or the sampler's work on a full batch of logits.

    A layer has residual, its input, gate, up and their product, in 16 bit.
    """
    wide = max(
        shape.intermediate, shape.expert_intermediate * max(shape.experts_per_token, 1)
    ) // max(tp, 1)
    layer = step_tokens * (2 * shape.hidden + 3 * wide) * SIXTEEN_BIT
    return max(layer, sequences * shape.vocabulary * SAMPLER_BYTES)


@dataclass(frozen=True)
class Budget:
    """One GPU's memory; `kv` is below 0 if the rest alone exceeds it."""

    usable: int
    weights: int
    activations: int
    runtime: int

    @property
    def kv(self) -> int:
        return self.usable - self.weights - self.activations - self.runtime


def budget_of(
    shape: ModelShape,
    gpu: Gpu,
    precision: Precision,
    tp: int,
    utilization: float,
    step_tokens: int,
    sequences: int,
) -> Budget:
    """Return the budget. `utilization` is vLLM's gpu_memory_utilization, `step_tokens` its
    max_num_batched_tokens."""
    return Budget(
        usable=int((gpu.memory_bytes - DRIVER_BYTES) * utilization),
        weights=weight_bytes(shape, precision, tp),
        activations=activation_bytes(shape, tp, step_tokens, sequences),
        runtime=RUNTIME_BYTES if tp == 1 else RUNTIME_BYTES_TP,
    )


def fitted(
    precision: Precision, shape: ModelShape, tp: int, sizes: Iterable[int] = GROUP_SIZES
) -> Precision | None:
    """Return the precision as vLLM can split it over `tp` GPUs, with the first group size that
    divides evenly; None if none does."""
    if shape.heads % tp or shape.intermediate % tp or shape.expert_intermediate % tp:
        return None
    if not shape.is_mla and shape.kv_heads % tp and tp % shape.kv_heads:
        return None
    if precision.group_size is None:
        return precision
    inputs = [
        linear.inputs // (tp if linear.shard == "inputs" else 1) for linear in shape.linears()
    ]
    even = (size for size in sizes if all(each % size == 0 for each in inputs))
    size = next(even, None)
    return None if size is None else replace(precision, group_size=size)
