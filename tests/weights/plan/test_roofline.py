"""How long steps take: properties that hold for every model, GPU and load."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weights.model.cache_dtype import CACHE_DTYPES, PLANNED
from weights.model.gpus import GPUS, gpu_called
from weights.model.known_models import known_config, known_models
from weights.model.memory import BF16, FP8, PRECISIONS, W4A16, W8A8
from weights.model.model_shape import shape_of
from weights.plan.roofline import (
    OfferedLoad,
    RooflineEngine,
    crossover_batch,
    decode_step_s,
    prefill_s,
    speed_of,
    weights_read,
)
from weights.plan.sizing import stored_precision

MODELS = {name: shape_of(known_config(name) or {}) for name in known_models()}
LLAMA_8B = MODELS["meta-llama/Llama-3.1-8B-Instruct"]
MIXTRAL = MODELS["mistralai/Mixtral-8x7B-Instruct-v0.1"]
A100, H100 = gpu_called("a100-80g"), gpu_called("h100")

engines = st.builds(
    RooflineEngine,
    st.sampled_from(list(MODELS.values())),
    st.sampled_from(GPUS),
    st.sampled_from(PRECISIONS),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([CACHE_DTYPES[name] for name in PLANNED]),
).filter(lambda engine: engine.precision.compute in engine.gpu.flops)
batches = st.integers(1, 256)
lengths = st.integers(1, 100_000)


@given(engines, batches, batches, lengths, lengths)
def test_more_work_never_takes_less_time(
    engine: RooflineEngine, batch: int, more: int, tokens: int, longer: int
) -> None:
    step = decode_step_s(engine, batch, tokens)
    assert step <= decode_step_s(engine, batch + more, tokens)
    assert step <= decode_step_s(engine, batch, tokens + longer)
    assert step <= decode_step_s(engine, batch, tokens, checked=5)
    assert prefill_s(engine, tokens) <= prefill_s(engine, tokens + longer)


@given(engines, batches, lengths, st.integers(1, 4000))
def test_more_requests_in_flight_finish_faster_and_each_waits_longer(
    engine: RooflineEngine, concurrency: int, prompt: int, output: int
) -> None:
    one = speed_of(engine, OfferedLoad(concurrency, prompt, output))
    two = speed_of(engine, OfferedLoad(concurrency + 1, prompt, output))
    assert two.requests_s >= one.requests_s * (1 - 1e-9)
    assert two.tpot_s >= one.tpot_s
    assert two.ttft_s >= one.ttft_s
    assert two.ttft_p99_s >= one.ttft_p99_s >= one.ttft_s


@given(engines, batches, lengths, st.integers(1, 4000), st.integers(1, 400), st.integers(0, 9999))
def test_more_replicas_answer_sooner_and_longer_prompts_later(
    engine: RooflineEngine, concurrency: int, prompt: int, output: int, replicas: int, longer: int
) -> None:
    load = OfferedLoad(concurrency, prompt, output, replicas=replicas)
    alone, more = speed_of(engine, load), speed_of(engine, replace(load, replicas=replicas + 1))
    longest = speed_of(engine, replace(load, long_prompt=prompt + longer))
    assert more.ttft_s <= alone.ttft_s * (1 + 1e-9)
    assert more.ttft_p99_s <= alone.ttft_p99_s * (1 + 1e-9)
    assert longest.ttft_p99_s >= alone.ttft_p99_s
    assert longest.ttft_s == alone.ttft_s


@given(engines, st.integers(1, 2000))
def test_no_step_reads_more_than_all_weights(engine: RooflineEngine, tokens: int) -> None:
    assert 0 < weights_read(engine, tokens) <= weights_read(engine, tokens + 1)


def test_one_token_reads_only_its_own_experts() -> None:
    engine = RooflineEngine(MIXTRAL, A100, BF16)
    assert weights_read(engine, 1) < weights_read(engine, 1000) / 3


def test_four_bits_decode_faster_in_small_batches_and_eight_bits_in_large_ones() -> None:
    light, fast = RooflineEngine(LLAMA_8B, A100, W4A16), RooflineEngine(LLAMA_8B, A100, W8A8)
    at = crossover_batch(light, fast, 2048)
    assert at is not None
    assert decode_step_s(light, at - 1, 2048) <= decode_step_s(fast, at - 1, 2048)
    assert decode_step_s(fast, at, 2048) < decode_step_s(light, at, 2048)


def test_four_bits_stay_faster_for_larger_batches_on_a_gpu_with_more_compute() -> None:
    def crossover(gpu: str, fast: str) -> int:
        engine = RooflineEngine(LLAMA_8B, gpu_called(gpu), W4A16)
        eight = W8A8 if fast == "int8" else FP8
        return crossover_batch(engine, replace(engine, precision=eight), 2048) or 0

    assert crossover("h100", "fp8") > crossover("a100-80g", "int8")


def test_there_is_no_crossover_with_the_same_engine() -> None:
    engine = RooflineEngine(LLAMA_8B, H100, W4A16)
    assert crossover_batch(engine, engine, 2048) is None


def test_four_bits_do_not_compute_a_prompt_faster() -> None:
    sixteen, four = RooflineEngine(LLAMA_8B, A100, BF16), RooflineEngine(LLAMA_8B, A100, W4A16)
    assert prefill_s(four, 4096) > prefill_s(sixteen, 4096)
    assert prefill_s(RooflineEngine(LLAMA_8B, A100, W8A8), 4096) < prefill_s(sixteen, 4096)


@pytest.mark.parametrize(("requests", "times"), [(8, 1.2), (32, 2.6)])
def test_the_cost_of_verifying_drafts_matches_the_a100_values_files(
    requests: int, times: float
) -> None:
    shape = MODELS["hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4"]
    engine = RooflineEngine(shape, A100, stored_precision(shape), 4)
    plain, checked = (decode_step_s(engine, requests, 2200, tokens) for tokens in (1, 5))
    assert checked / plain == pytest.approx(times, abs=0.05)
