"""What is expected of an engine that is configured: as `antefix plan` counts it."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.models.model_config import EMBEDDED_CONFIG
from weights.kernels.finding import Device, EngineConfig, Model
from weights.model.gpus import gpu_called
from weights.model.known_models import known_config
from weights.model.memory import GIB
from weights.model.model_shape import shape_of
from weights.plan.engine_plan import EnginePlan, engine_plan
from weights.plan.plan import plan_for
from weights.plan.roofline import OfferedLoad, speed_of
from weights.plan.sizing import MOST_SEQUENCES, STEP_TOKENS, SizingTarget

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
AWQ = "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"
GPU = gpu_called("a100-80g")
A100 = Device(GPU.ray_type, GPU.capability, GPU.memory_bytes)
CPU = Device("CPU", None)
SIZES = {
    "gpu_memory_utilization": 0.9,
    "max_num_batched_tokens": STEP_TOKENS,
    "max_num_seqs": MOST_SEQUENCES,
}


def model(name: str = LLAMA) -> Model:
    return Model(name, shape_of(known_config(name) or EMBEDDED_CONFIG))


def planned(
    name: str = LLAMA,
    device: Device | None = A100,
    *,
    tp: int = 1,
    pp: int = 1,
    env: dict[str, str] | None = None,
    **args: Any,
) -> EnginePlan:
    return engine_plan(model(name), EngineConfig({**SIZES, **args}, env or {}, tp, pp), device)


def test_cache_and_speed_are_those_of_the_plan() -> None:
    found = planned()
    target = SizingTarget(8192, 2000, 64, ttft_s=2, concurrency=1)
    (bf16,) = [
        option
        for option in plan_for(model().shape, GPU, target).options
        if option.engine.precision.name == "bf16" and option.engine.tp == 1
    ]
    assert found.kv_tokens == bf16.kv_tokens
    assert found.roofline is not None
    assert speed_of(found.roofline, OfferedLoad(1, 2000, 64)) == bf16.speed


def test_weights_are_counted_as_the_checkpoint_stores_them() -> None:
    found = planned(AWQ, tp=2)
    assert found.is_quantized and found.roofline is not None
    assert found.roofline.precision.bits == 4


def test_a_cache_of_8_bit_holds_more_and_is_read_by_triton() -> None:
    plain, small = planned(), planned(kv_cache_dtype="int8_per_token_head")
    assert small.kv_tokens is not None and plain.kv_tokens is not None
    assert small.kv_tokens > 1.9 * plain.kv_tokens
    assert (plain.attention, small.attention) == ("FLASH_ATTN", "TRITON_ATTN")


def test_a_named_backend_is_the_expected_one() -> None:
    assert planned(attention_backend="flashinfer").attention == "FLASHINFER"


def test_no_backend_is_expected_for_latent_attention() -> None:
    gpu = gpu_called("h200")
    h200 = Device(gpu.ray_type, gpu.capability, gpu.memory_bytes)
    found = planned("deepseek-ai/DeepSeek-V3", h200, tp=8)
    assert found.roofline is not None and found.attention == ""


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu"])
def test_n_gram_drafts_take_no_memory(method: str) -> None:
    config = {"method": method, "num_speculative_tokens": 3}
    assert planned(speculative_config=config).kv_tokens == planned().kv_tokens


def test_a_heads_weights_and_cache_leave_less_for_the_model() -> None:
    head = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
    config = {"method": "eagle3", "model": head, "num_speculative_tokens": 2}
    engine = EngineConfig({**SIZES, "speculative_config": config}, {})
    found, alone = engine_plan(model(), engine, A100, model(head)).kv_tokens, planned().kv_tokens
    assert found is not None and alone is not None
    # one layer more than 32, and about 0.8 GB of weights
    assert 0.93 < found / alone < 32 / 33


def test_an_unknown_heads_memory_is_not_planned() -> None:
    found = planned(speculative_config={"method": "eagle3", "model": "a/head"})
    assert found.kv_tokens is None and "draft" in found.no_kv_tokens
    assert found.roofline is not None


def test_a_cpus_cache_is_what_its_variable_reserves() -> None:
    found = planned(device=CPU, env={"VLLM_CPU_KVCACHE_SPACE": "1"}, dtype="float32")
    shape = model().shape
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    assert found.kv_tokens is not None and 0 <= GIB - found.kv_tokens * each < 16 * each
    assert found.roofline is None and found.no_roofline == "the planner has no speeds of CPUs"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (planned(device=None), "its GPU is unknown"),
        (planned(device=Device("T4", (7, 5))), "the GPU 'T4' is unknown"),
        (planned("deepseek-ai/DeepSeek-V3", tp=8), "a100-80g does not compute fp8"),
        (planned(pp=2), "stages of a pipeline are not planned"),
        (planned(quantization="torchao"), "quantization torchao is not planned"),
        (planned(kv_cache_dtype="nvfp4"), "a KV cache of nvfp4 is not planned"),
    ],
)
def test_an_unplanned_engine_has_a_reason(found: EnginePlan, why: str) -> None:
    assert (found.kv_tokens, found.roofline) == (None, None)
    assert (found.no_kv_tokens, found.no_roofline) == (why, why)
