"""Bytes of weights and KV cache, against files and against what others report."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.models.model import embedded_model
from deployments.models.model_config import EMBEDDED_CONFIG
from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.gpus import GPUS, gpu_called
from weights.model.known_models import known_config, known_models
from weights.model.memory import (
    BF16,
    FP8,
    GIB,
    MXFP4,
    PRECISIONS,
    W4A16,
    W8A8,
    Precision,
    budget_of,
    fitted,
    kv_bytes_of,
    kv_bytes_per_token,
    kv_tokens,
    weight_bytes,
)
from weights.model.model_shape import ModelShape, shape_of

HALF, FLOAT32 = CACHE_DTYPES["float16"], CACHE_DTYPES["float32"]
MODELS = {name: shape_of(known_config(name) or {}) for name in known_models()}
EMBEDDED = shape_of(EMBEDDED_CONFIG)
LLAMA_8B = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
LLAMA_70B = MODELS["meta-llama/Llama-3.1-70B-Instruct"]
DEEPSEEK = MODELS["deepseek-ai/DeepSeek-V3"]

shapes = st.sampled_from(list(MODELS.values()))
precisions = st.sampled_from(PRECISIONS)
degrees = st.sampled_from([1, 2, 4, 8])
lengths = st.integers(1, 200_000)


@pytest.mark.real
def test_the_embedded_models_weights_are_its_file() -> None:
    file = embedded_model(lambda fraction, step: None) / "model.safetensors"
    assert weight_bytes(EMBEDDED, BF16) == pytest.approx(file.stat().st_size, rel=0.01)


def test_four_bit_weights_are_what_llm_compressor_writes() -> None:
    # made by llm-compressor 0.14: round-to-nearest, symmetric, groups of 32
    symmetric = replace(W4A16, group_size=32, zero_points=False)
    assert weight_bytes(EMBEDDED, symmetric) == pytest.approx(116_493_360, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "precision", "published"),
    [
        # vLLM's "model weights take", github.com/vllm-project/vllm/pull/10511
        (LLAMA_8B, BF16, 14.96 * GIB),
        # 4.68 and 1.05 GB: the files of huggingface.co/hugging-quants/
        # Meta-Llama-3.1-8B-Instruct-AWQ-INT4
        (LLAMA_8B, W4A16, 5.73e9),
    ],
)
def test_weight_sizes_match_the_published_ones(
    shape: ModelShape, precision: Precision, published: float
) -> None:
    assert weight_bytes(shape, precision) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("model", "published"), [("openai/gpt-oss-20b", 12.8), ("openai/gpt-oss-120b", 60.8)]
)
def test_the_size_of_mxfp4_experts_matches_the_published_one(model: str, published: float) -> None:
    """In GiB: arXiv 2508.10925, table 1."""
    whole = weight_bytes(MODELS[model], BF16, experts=MXFP4) / GIB
    assert whole == pytest.approx(published, rel=0.01)


def test_a_token_with_grouped_heads_takes_one_key_and_one_value_per_layer() -> None:
    # 2 x layers x 8 heads x 128 x 2 bytes; 516 KB for the larger: arXiv 2505.09343, table 1
    assert kv_bytes_per_token(LLAMA_70B, HALF) == 327_680
    assert kv_bytes_per_token(MODELS["meta-llama/Llama-3.1-405B-Instruct"], HALF) == 516_096


def test_a_token_with_latent_attention_takes_one_latent_per_layer() -> None:
    # (512 + 64) x 61 layers x 2 bytes: 70 KB a token, arXiv 2505.09343, table 1
    assert kv_bytes_per_token(DEEPSEEK, HALF) == 70_272


def test_latents_are_copied_to_every_gpu_and_heads_are_split() -> None:
    assert kv_bytes_per_token(DEEPSEEK, HALF, tp=8) == kv_bytes_per_token(DEEPSEEK, HALF)
    assert kv_bytes_per_token(LLAMA_70B, HALF, tp=4) * 4 == kv_bytes_per_token(LLAMA_70B, HALF)


def test_heads_are_copied_where_there_are_fewer_than_gpus() -> None:
    assert kv_bytes_per_token(LLAMA_70B, HALF, tp=16) == kv_bytes_per_token(LLAMA_70B, HALF, tp=8)


@pytest.mark.parametrize(
    ("name", "size"), [("int8_per_token_head", 128 + 4), ("int4_per_token_head", 64 + 4)]
)
def test_a_cache_with_scales_keeps_a_float32_per_key_and_value(name: str, size: int) -> None:
    token = kv_bytes_per_token(LLAMA_70B, CACHE_DTYPES[name], tp=4)
    assert token == 2 * 2 * size * 80


def test_layers_with_a_window_keep_no_more_than_the_window() -> None:
    shape = replace(EMBEDDED, sliding_window=100, full_attention_layers=10)
    layer = kv_bytes_per_token(EMBEDDED, HALF) // 30
    assert kv_bytes_of(shape, 1000, HALF) == layer * (10 * 1000 + 20 * 100)
    assert kv_bytes_of(shape, 50, HALF) == kv_bytes_of(EMBEDDED, 50, HALF)


def test_a_cache_holds_whole_blocks() -> None:
    token = kv_bytes_per_token(EMBEDDED, FLOAT32)
    assert kv_tokens(EMBEDDED, token * 128 * 3 + 5, FLOAT32, block=128) == 384
    assert kv_tokens(EMBEDDED, token * 127, FLOAT32, block=128) == 0
    assert kv_tokens(EMBEDDED, -1, FLOAT32, block=128) == 0


def test_the_group_size_divides_the_inputs_of_every_layer() -> None:
    assert fitted(W4A16, LLAMA_70B, 4) == W4A16
    # 64 divides the embedded model's 576 and 1536 inputs, 128 does not
    assert fitted(W4A16, EMBEDDED, 1) == replace(W4A16, group_size=64)


@pytest.mark.parametrize("precision", PRECISIONS, ids=lambda precision: precision.name)
def test_no_plan_splits_heads_unevenly(precision: Precision) -> None:
    assert fitted(precision, EMBEDDED, 2) is None


@given(shapes, degrees, lengths)
def test_fewer_bits_never_need_more_bytes(shape: ModelShape, tp: int, tokens: int) -> None:
    sizes = [weight_bytes(shape, precision, tp) for precision in (BF16, FP8, W4A16)]
    assert sizes == sorted(sizes, reverse=True)
    assert weight_bytes(shape, FP8, tp) == weight_bytes(shape, W8A8, tp)
    eight, sixteen = (kv_bytes_of(shape, tokens, of, tp) for of in (CACHE_DTYPES["fp8"], HALF))
    assert eight <= sixteen


@given(shapes, precisions, st.sampled_from([1, 2, 4]))
def test_twice_the_gpus_never_hold_more_each(
    shape: ModelShape, precision: Precision, tp: int
) -> None:
    assert weight_bytes(shape, precision, 2 * tp) <= weight_bytes(shape, precision, tp)
    assert weight_bytes(shape, precision, tp) * tp >= weight_bytes(shape, precision)


@given(shapes, precisions, degrees, st.integers(0, 10**11), st.integers(0, 10**11))
def test_more_memory_never_fits_less(
    shape: ModelShape, precision: Precision, tp: int, bytes_a: int, bytes_b: int
) -> None:
    small, large = (
        budget_of(shape, replace(GPUS[0], memory_bytes=memory), precision, tp, 0.9, 8192, 256)
        for memory in sorted((bytes_a, bytes_b))
    )
    assert small.kv <= large.kv
    assert kv_tokens(shape, small.kv, HALF, tp=tp) <= kv_tokens(shape, large.kv, HALF, tp=tp)


@given(shapes, lengths, lengths, degrees)
def test_a_longer_sequence_never_takes_less(
    shape: ModelShape, tokens: int, more: int, tp: int
) -> None:
    assert kv_bytes_of(shape, tokens, HALF, tp) <= kv_bytes_of(shape, tokens + more, HALF, tp)


def test_the_memory_left_for_the_cache_matches_the_report_of_vllm() -> None:
    """Its own report for Llama 3 8B on 80 GB, github.com/vllm-project/vllm/pull/10511."""
    budget = budget_of(LLAMA_8B, gpu_called("h100"), BF16, 1, 0.9, 8192, 256)
    reported = {"usable": 71.29, "weights": 14.96, "activations": 1.26, "runtime": 1.79}
    for part, gib in reported.items():
        assert getattr(budget, part) / GIB == pytest.approx(gib, abs=0.01), json.dumps(part)
    assert budget.kv / GIB == pytest.approx(53.29, rel=0.001)
