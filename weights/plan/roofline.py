"""The time of a step, from its memory traffic and computation: a roofline per GPU.

A step reads the weights once and every sequence's KV cache. It computes two operations for each
weight and token (Williams et al., "Roofline", CACM 2009; Pope et al., arXiv 2211.05102). The
reached share of the datasheet's rates is stated only here; docs/planning.md compares the result
with published measurements. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weights.model.cache_dtype import SIXTEEN_BIT_CACHE, CacheDtype
from weights.model.gpus import Gpu
from weights.model.memory import SIXTEEN_BIT, Precision, kv_bytes_of, weight_bytes
from weights.model.model_shape import ModelShape
from weights.plan.queueing import mean_wait, wait_percentile

# Fitted by hand, to two digits, to tests/weights/published.yaml: shares of the datasheet's
# bandwidth, and of its operations per second in the matrix products of a prompt. 8-bit kernels
# reach a smaller share of twice the rate, because of scales and of layers that stay in 16 bit.
BANDWIDTH_REACHED = 0.85
COMPUTE_REACHED = {"bf16": 0.65, "int8": 0.45, "fp8": 0.45}
# 4-bit weights are unpacked before the 16-bit arithmetic.
UNPACKING = 0.9
# Launches of a layer's kernels one after another, and small kernels between the products.
LAYER_S = 50e-6
# Scheduling, sampling and handover, per step.
STEP_S = 0.5e-3
# A ring over NVLink: two all-reduces per layer, each with this latency in addition to its bytes.
ALL_REDUCE_S = 15e-6


@dataclass(frozen=True)
class RooflineEngine:
    """One replica: a model in a precision on `tp` GPUs, with a KV cache of a dtype."""

    shape: ModelShape
    gpu: Gpu
    precision: Precision
    tp: int = 1
    cache: CacheDtype = SIXTEEN_BIT_CACHE

    @cached_property
    def weights(self) -> int:
        """Return the weight bytes of one GPU that a step reads: the token table is looked up, not
        read."""
        shape = self.shape
        table = shape.table_parameters // self.tp
        return weight_bytes(shape, self.precision, self.tp) - table * SIXTEEN_BIT

    @cached_property
    def expert_weights(self) -> float:
        """Return the part of them in a mixture's experts."""
        weights = sum(linear.parameters for linear in self.shape.linears() if linear.expert)
        return weights * self.precision.bits_per_weight / 8 / self.tp

    @property
    def cache_read(self) -> CacheDtype:
        """Return the dtype whose reading time applies.

        With scales of each token and head, vLLM reads the cache with Triton instead of
        FlashAttention: until that is measured, no time is saved.
        """
        return SIXTEEN_BIT_CACHE if self.cache.has_scales else self.cache

    @property
    def flops(self) -> float:
        """Return the reached operations per second of the whole group."""
        kind = self.precision.compute
        unpacked = UNPACKING if self.precision.bits == 4 else 1.0
        return self.gpu.flops[kind] * COMPUTE_REACHED[kind] * unpacked * self.tp

    @property
    def bandwidth(self) -> float:
        """Return the reached bytes per second of one GPU."""
        return self.gpu.bandwidth * BANDWIDTH_REACHED


def weights_read(engine: RooflineEngine, tokens: int) -> float:
    """Return the weight bytes that a GPU reads in a step of `tokens` tokens.

    Of a mixture's experts, those with at least one token are read: with E experts, k per token and
    even routing, 1 - (1 - k/E)^tokens of them.
    """
    shape = engine.shape
    if not shape.experts:
        return engine.weights
    untouched = (1 - shape.experts_per_token / shape.experts) ** tokens
    return engine.weights - engine.expert_weights * untouched


def all_reduces_s(engine: RooflineEngine, tokens: int) -> float:
    """Return the seconds of two all-reduces per layer; each moves 2 (tp - 1) / tp of the hidden
    states over every link."""
    if engine.tp == 1:
        return 0.0
    moved = 2 * (engine.tp - 1) / engine.tp * tokens * engine.shape.hidden * SIXTEEN_BIT
    return 2 * engine.shape.layers * (ALL_REDUCE_S + moved / engine.gpu.link)


def decode_step_s(engine: RooflineEngine, batch: int, context: float, checked: int = 1) -> float:
    """Return the seconds of one step for `batch` sequences with `context` tokens each.

    `checked` tokens of each sequence: 1, or 1 more than were drafted.
    """
    tokens = batch * checked
    read = weights_read(engine, tokens) / engine.bandwidth
    computed = 2 * engine.shape.active_parameters * tokens / engine.flops
    cache = batch * kv_bytes_of(engine.shape, int(context), engine.cache_read, engine.tp)
    overhead = STEP_S + engine.shape.layers * LAYER_S
    # attention's kernels run after the products, so its reads are added to the larger of the two
    return max(read, computed) + cache / engine.bandwidth + all_reduces_s(engine, tokens) + overhead


def prefill_s(engine: RooflineEngine, tokens: int) -> float:
    """Return the seconds of one prompt on an idle engine: products, attention (causal: half of its
    square), all-reduces."""
    shape = engine.shape
    width = shape.qk_nope_head_dim + shape.qk_rope_head_dim if shape.is_mla else shape.head_dim
    # the output head computes only the last token
    products = 2 * (shape.active_parameters - shape.vocabulary * shape.hidden) * tokens
    attention = 2 * shape.layers * shape.heads * width * tokens**2
    rate16 = engine.gpu.flops["bf16"] * COMPUTE_REACHED["bf16"] * engine.tp
    computed = products / engine.flops + attention / rate16
    read = weights_read(engine, tokens) / engine.bandwidth
    overhead = STEP_S + shape.layers * LAYER_S
    return max(computed, read) + all_reduces_s(engine, tokens) + overhead


def prefill_rate(engine: RooflineEngine, prompt: int) -> float:
    """Return tokens per second of one replica that computes prompts of `prompt` tokens, one by
    one."""
    return prompt / prefill_s(engine, prompt)


@dataclass(frozen=True)
class OfferedLoad:
    """The load on each of `replicas`: requests in flight, and their mean lengths in tokens.

    One prompt in a hundred is longer than `long_prompt`; None: all have the mean length.
    """

    concurrency: int
    prompt: int
    output: int
    long_prompt: int | None = None
    replicas: int = 1


@dataclass(frozen=True)
class Speed:
    """`ttft_s` and `tpot_s` of a mean request, `ttft_p99_s` of the 99th of a hundred; `requests_s`
    that one replica finishes."""

    ttft_s: float
    ttft_p99_s: float
    tpot_s: float
    step_s: float
    requests_s: float


def speed_of(engine: RooflineEngine, load: OfferedLoad) -> Speed:
    """Return the speed of replicas with `concurrency` requests always in flight on each.

    While one request decodes, the same GPUs compute all the others' prompts, so a cycle lasts
    output x step + concurrency x prefill. A prompt waits for others with the prefills' share of
    that time (weights.plan.queueing). The 99th of a hundred requests is the slower of two: a long
    prompt with the mean wait, and a mean prompt with the 99th wait. Both at once are rarer than one
    in a hundred.
    """
    prompt_s = prefill_s(engine, load.prompt)
    step_s = decode_step_s(engine, load.concurrency, load.prompt + load.output / 2)
    others = (load.concurrency - 1) * prompt_s
    cycle = load.output * step_s + load.concurrency * prompt_s
    share = others / cycle
    mean = mean_wait(load.replicas, share) * prompt_s
    late = wait_percentile(load.replicas, share) * prompt_s
    long_s = prefill_s(engine, load.long_prompt or load.prompt)
    first_step = step_s if load.concurrency > 1 else 0.0
    return Speed(
        ttft_s=prompt_s + mean + first_step,
        ttft_p99_s=max(long_s + mean, prompt_s + late) + first_step,
        tpot_s=step_s + others / load.output,
        step_s=step_s,
        requests_s=load.concurrency / cycle,
    )


def crossover_batch(
    light: RooflineEngine, fast: RooflineEngine, context: int, most: int = 4096
) -> int | None:
    """Return the smallest batch at which a decode step of `fast` takes less time than one of
    `light`.

    None if there is none up to `most`.
    """
    low, high = 1, most
    if decode_step_s(fast, high, context) >= decode_step_s(light, high, context):
        return None
    while low < high:
        middle = (low + high) // 2
        if decode_step_s(fast, middle, context) < decode_step_s(light, middle, context):
            high = middle
        else:
            low = middle + 1
    return low
